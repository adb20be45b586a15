"""Make an entry: run all its runs on processes, keep their record, and verify a kept record."""

import dataclasses
import hashlib
import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torch import Tensor
from tqdm import tqdm

from gradwire.core.launchers.environment import die_with_parent, environment
from gradwire.core.records.atomic import write_together
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.machine import git_commit, machine, name_of
from gradwire.pictures.page import pack
from gradwire.scoreboard import game
from gradwire.scoreboard.clusters import CLUSTERS, COMPUTE, RANKS
from gradwire.scoreboard.entry import Entry
from gradwire.scoreboard.game import Played
from gradwire.scoreboard.table import file_name

PROCESSES = 2
KERNELS = {
    "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41",
}  # fmt: skip
"""Variables by which torch, MKL and oneDNN add in the same order on every x86 processor."""
SAME = "hashes", "seconds", "bytes"  # of two runs of an entry on processors of one kind
ROUNDING = 1e-4  # bits per character, by which the scores of the same parameters differ on two machines at most


@dataclass(frozen=True)
class Scale:
    """How many seeds there are, and which share of each budget; a record has all."""

    seeds: int = 10
    share: float = 1.0


RECORD, TRIAL = Scale(), Scale(seeds=2, share=0.4)


@contextmanager
def workers(processes: int = PROCESSES) -> Iterator[Executor]:
    """Yield processes that run the game, each on one thread; when the block ends, they end, whatever they do."""
    with environment(**KERNELS):
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_begin)
        try:
            yield pool
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    die_with_parent()
    tqdm.set_lock(threading.RLock())  # else each bar makes a semaphore, which a killed process does not remove


def in_parallel(pool: Executor, tasks: Mapping[Any, tuple[Callable[..., Any], Any]], what: str) -> dict[Any, Any]:
    """Return the results of calls, each a function and its arguments. Raises the error of the first that fails."""
    futures: dict[Future[Any], Any] = {
        pool.submit(function, *arguments): key for key, (function, arguments) in tasks.items()
    }
    found = {}
    try:
        for future in tqdm(as_completed(futures), total=len(futures), unit="run", desc=what, leave=False):
            found[futures[future]] = future.result()
    except BrokenProcessPool as error:
        raise RunFailed(f"{what}: a process that computed died; if memory ran out, end other programs") from error
    finally:
        for future in futures:
            future.cancel()
    return found


def play_all(entry: Entry, steps: Mapping[str, int], scale: Scale, pool: Executor) -> dict[Any, Played]:
    """Return all runs of an entry, by cluster and seed. Raises UsageError, RunFailed."""
    tasks: dict[Any, Any] = {}
    for place, n in steps.items():
        limit = 2 * CLUSTERS[place].budget
        for seed in range(scale.seeds):
            show = seed == 0 and place == next(iter(CLUSTERS))
            tasks[place, seed] = game.play, (entry, place, seed, n, limit, show)
    return in_parallel(pool, tasks, entry.name)


def find_late(found: Mapping[Any, Played], scale: Scale) -> dict[str, float]:
    """Return the clusters on which a run ended after the budget, and how many times the budget the last one took."""
    shares = {place: 0.0 for place, _ in found}
    for (place, _), played in found.items():
        shares[place] = max(shares[place], played.seconds / (CLUSTERS[place].budget * scale.share))
    return {place: share for place, share in shares.items() if share > 1}


def make(entry: Entry, pool: Executor, scale: Scale = RECORD) -> tuple[dict[str, Any], str]:
    """Return the record of an entry, and the page of a run. Raises UsageError, RunFailed if it is refused.

    It takes as many steps as fit with the first seed; fewer if those end after the budget with another.
    """
    budgets = {place: cluster.budget * scale.share for place, cluster in CLUSTERS.items()}
    tasks = {place: (game.fit, (entry, place, budget)) for place, budget in budgets.items()}
    steps = in_parallel(pool, tasks, f"{entry.name}: steps")
    found = play_all(entry, {place: steps[place] for place in CLUSTERS}, scale, pool)
    while late := find_late(found, scale):
        fewer = {place: min(int(steps[place] / share), steps[place] - 1) for place, share in late.items()}
        if 0 in fewer.values():
            raise RunFailed(f"{entry.name}: one step does not end within the budget with every seed")
        steps |= fewer
        found |= play_all(entry, fewer, scale, pool)
    clusters = {
        place: {"options": entry.options.get(place, ""), "steps": steps[place]}
        | _results([found[place, seed] for seed in range(scale.seeds)])
        for place in CLUSTERS
    }
    lines = Path(entry.file).read_text(encoding="utf-8").splitlines()
    facts = {
        "entry": entry.name, "file": name_of(entry.file), "lines": len(lines), "game": described(),
        "clusters": clusters,
        "machine": machine(), "kernels": KERNELS, "git_commit": git_commit(),
    }  # fmt: skip
    return facts, next(played.page for played in found.values() if played.page)


def _results(runs: list[Played]) -> dict[str, list[Any]]:
    return {
        "scores": [round(game.score(played.parameters), 6) for played in runs],
        "hashes": [digest(played.parameters) for played in runs],
        "seconds": [round(played.seconds, 9) for played in runs],
        "bytes": [played.nbytes for played in runs],
    }


def described() -> dict[str, Any]:
    """Return the game, as it is kept: an entry of another is not compared."""
    clusters = {place: dataclasses.asdict(cluster) for place, cluster in CLUSTERS.items()}
    sizes = {"ranks": RANKS, "batch_size": game.BATCH, "context": game.CONTEXT, "compute": COMPUTE}
    return {**sizes, "model": game.SIZE, "clusters": clusters}


def keep(facts: Mapping[str, Any], page: str, folder: Path) -> list[Path]:
    """Write the record of an entry, both files or none."""
    paths = [folder / file_name(str(facts["entry"]), kind) for kind in ("json", "html")]
    texts = json.dumps(facts, indent=1) + "\n", pack(page, str(facts["entry"]))
    with write_together(paths) as temporaries:
        for temporary, text in zip(temporaries, texts, strict=True):
            temporary.write_text(text, encoding="utf-8")
    return paths


def verify(entry: Entry, facts: Mapping[str, Any], pool: Executor) -> str:
    """Make a kept entry again; return a report of what agrees. Raises RunFailed if a score leaves the kept spread.

    Processors of different kinds round differently, so bits are compared on one of the kept kind only.
    """
    if facts["game"] != described():
        raise RunFailed(f"{entry.name}: was made with other clusters or sizes; enter it again")
    kept = facts["clusters"]
    scale = Scale(seeds=len(next(iter(kept.values()))["scores"]))
    entry = dataclasses.replace(entry, options={place: of["options"] for place, of in kept.items()})
    found = play_all(entry, {place: of["steps"] for place, of in kept.items()}, scale, pool)
    for place in find_late(found, scale):
        raise RunFailed(f"{entry.name}, {place}: takes more virtual seconds than the budget; enter it again")
    cpu, cpu_then = machine()["cpu"], facts["machine"]["cpu"]
    same = SAME if cpu == cpu_then else SAME[1:]
    lines, is_right = [], True
    for place, of in kept.items():
        now = _results([found[place, seed] for seed in range(scale.seeds)])
        others = [seed for seed in range(scale.seeds) if any(now[key][seed] != of[key][seed] for key in same)]
        what = "bits" if cpu == cpu_then else f"virtual seconds and bytes (bits not compared: {cpu}, kept {cpu_then})"
        line = f"{entry.name}, {place}: {scale.seeds - len(others)} of {scale.seeds} runs have the same {what}"
        mean, middle, spread = fmean(now["scores"]), fmean(of["scores"]), stdev(of["scores"])
        differences = [abs(a - b) for a, b in zip(now["scores"], of["scores"], strict=True)]
        alike = [seed for seed in range(scale.seeds) if seed not in others and cpu == cpu_then]
        is_as_said = all(differences[seed] <= ROUNDING for seed in alike)
        is_within = is_as_said and abs(mean - middle) <= spread
        if others or not is_within or cpu != cpu_then:
            line += f", not those of seeds {', '.join(map(str, others))}" if others else ""
            line += f"; mean {mean:.4f}, kept {middle:.4f} ± {spread:.4f}: {'within' if is_within else 'outside'}"
        is_right &= is_within
        lines.append(line)
    if not is_right:
        raise RunFailed("\n".join(lines))
    return "\n".join(lines)


def digest(parameters: Mapping[str, Tensor]) -> str:
    """Return a hash of the bits of all parameters."""
    hashed = hashlib.sha256()
    for name in sorted(parameters):
        hashed.update(parameters[name].numpy().tobytes())
    return hashed.hexdigest()[:16]
