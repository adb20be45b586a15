"""Write the Speed table into benchmarks/README.md, from the figures that its benchmarks have kept.

python -m benchmarks report              # from the figures in the repository

python -m benchmarks report --measure    # from new ones: less than 20 minutes, with nothing else running

A benchmark that fails is reported, and the others are still run; the table is then left as it is.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.grid import ROOT, hardware
from experiments.tables import markdown, replace_marked
from gradwire.core.records.atomic import write_atomically
from gradwire.core.records.errors import RunFailed, UsageError, as_usage_error
from gradwire.core.transports.timing import now

README = Path(__file__).resolve().parent / "README.md"
KEPT = ROOT / "results" / "intel-r-xeon-r-processor-2-cores" / "benchmarks"
Rows = list[dict[str, Any]]
Lines = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Settings:
    """Whose figures."""

    results_dir: str | None = None
    """The folder with the figures. Default: those in the repository; with --measure results/HARDWARE/benchmarks."""
    measure: bool = False
    """Run all benchmarks of the table first."""


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each benchmark of TABLE has kept. Raises UsageError if there is nothing, or not of one machine."""
    kept: dict[str, dict[str, Any]] = {}
    for name in TABLE:
        path = folder / f"{name}.json"
        if path.exists():
            kinds = (OSError, ValueError, KeyError, TypeError, IndexError)
            with as_usage_error(f"{path}: not the figures of a benchmark", "; run it again", kinds):
                kept[name] = json.loads(path.read_text(encoding="utf-8"))
                kept[name]["rows"][0], kept[name]["machine"]["cpu"], kept[name]["git_commit"]
    if not kept:
        raise UsageError(f"no figures in {folder}: make them with python -m benchmarks report --measure")
    # But for the kernel, which is updated now and then: "platform" says its version.
    if len({str(report["machine"] | {"platform": None}) for report in kept.values()}) > 1:
        raise UsageError(f"{folder}: not all figures are of one machine; make all with --measure")
    return kept


def listed(rows: Rows, name: str, form: str) -> str:
    """Return what the rows have under a name, one after the other in this format."""
    return ", ".join(format(row[name], form) for row in rows)


def times(rows: Rows, name: str = "ratio") -> str:
    """Return the ratios that the rows have under a name, with their quartiles."""
    each = [(row[name], *row[f"{name}_quartiles"]) for row in rows]
    return ", ".join(f"{middle:.3g} ({low:.3g}-{high:.3g})" for middle, low, high in each)


def _all_reduce(whose: str, peer: str, transport: str, rows: Rows) -> Lines:
    rows = [row for row in rows if row["numel"] in _SHOWN]
    what = f"ring against {whose} all-reduce, {rows[0]['world_size']} ranks, {listed(rows, 'numel', ',')} elements"
    yield what, times(rows, f"{peer}_ratio")
    yield f"ring on `{transport}`", times(rows, f"over_{peer}_ratio")
    yield "`--strategy all_reduce`", times(rows, f"{peer}_chosen_ratio")
    if peer == "gloo":
        yield "the ring", f"{listed(rows, 'ring_us', '.0f')} µs"


def _backend(ranks: int, rows: Rows) -> Lines:
    sums, models = ([row for row in rows if row["what"] == what] for what in ("all_reduce", "DDP"))
    yield (
        f"backend `gradwire` against gloo, {ranks} ranks, {listed(sums, 'of', ',')} elements",
        times(sums, "kept_ratio"),
    )
    yield "a new tensor each time", times(sums, "fresh_ratio")
    yield f"DDP of {listed(models, 'of', '')}", times(models, "kept_ratio")


def _training(rows: Rows) -> Lines:
    for row in rows:
        what = f"training the {row['model'].upper()}, {row['n_gpus']} processes"
        yield f"{what}: `{row['strategy']}` against `{row['peer']}`", times([row])


def _parameter_server(rows: Rows) -> Lines:
    theirs = [row for row in rows if not row["server"].endswith("param_server")]
    of, workers = f"{theirs[0]['mode']} server against `{theirs[0]['server']}`", listed(theirs, "workers", "")
    yield f"{of}, {workers} workers, 5.8M-parameter MLP", times(theirs)


def _startup(rows: Rows) -> Lines:
    ready = [row for row in rows if row["what"].endswith("ranks ready")]
    base, *others = (row for row in rows if row not in ready)
    yield f"`{base['what']}`", f"{base['seconds']:.2f} s"
    for row in others:
        yield row["what"], f"{row['seconds']:.2f} s; {times([row])} times that"
    counts = ", ".join(row["what"].split()[0] for row in ready)
    yield f"until {counts} ranks are ready", f"{listed(ready, 'seconds', '.2f')} s"


def _prediction(rows: Rows) -> Lines:
    walls = [row for row in rows if row["wall"] == "yes"]
    ranks, mbit = (", ".join(map(str, sorted({row[name] for row in rows}))) for name in ("ranks", "mbit"))
    what = f" against processes, {ranks} ranks, {mbit} Mbit/s, {len(walls)} cases limited by the link"
    for side, name, of in (("virtual time", "error", what), ("the closed form", "predicted_error", "")):
        errors = sorted(float(row[name].removesuffix(" %")) for row in walls)
        yield f"a step by {side}{of}", f"{errors[0]:+.1f} to {errors[-1]:+.1f} %"


def _compression(rows: Rows) -> Lines:
    lengths = sorted({row["elements"] for row in rows})
    middle, of_all = lengths[len(lengths) // 2], f"{', '.join(f'{n / 1e6:.1f}' for n in lengths)} million elements"
    yield f"codecs, one core, {of_all}", "times as fast"
    for name, against in _COMPARED.items():
        mine = [row for row in rows if row["torch_ms"] != "" and row["what"].split(",")[0] == name]
        off = ", ".join(f"{100 * float(row['error'] or 0):+.1f} %" for row in mine)
        more = f"; {off} elements" if name == "selection.above" else ""
        yield against, times(mine) + more
    yield f"codecs, {middle / 1e6:.1f} million", "encode, decode, size, error"
    for row in rows:
        if row["elements"] == middle and row["encode_ms"] != "":
            spent = f"{row['encode_ms']:.1f} ms, {row['decode_ms']:.1f} ms"
            yield f"`{row['what']}`", f"{spent}, {row['percent']:.3g} %, {row['error']:.3g}"


_COMPARED = {
    "selection.top": "the largest 1 %, exactly, against torch.topk",
    "selection.above": "about as many, by a threshold from a sample",
    "powersgd": "a step of powersgd, rank 2, against torch's hook",
}
_SHOWN = (1_000, 10_000, 1_000_000, 16_000_000)
_GLOO = partial(_all_reduce, "gloo's", "gloo", "process_group")
_MPI = partial(_all_reduce, "Open MPI's", "mpi", "mpi")
TABLE: dict[str, tuple[str, Callable[[Rows], Lines]]] = {
    "all_reduce_2": ("all_reduce --world_size 2", _GLOO),
    "all_reduce_4": ("all_reduce --world_size 4", _GLOO),
    "all_reduce_mpi_2": ("all_reduce --world_size 2 --peers mpi", _MPI),
    "all_reduce_mpi_4": ("all_reduce --world_size 4 --peers mpi", _MPI),
    "backend_2": ("backend --world_size 2 --repeats 9", partial(_backend, 2)),
    "backend_4": ("backend --world_size 4 --repeats 5", partial(_backend, 4)),
    "training": ("training", _training),
    "parameter_server": ("parameter_server --repeats 7", _parameter_server),
    "startup": ("startup", _startup),
    "prediction": ("prediction", _prediction),
    "compression": ("compression", _compression),
}
"""By the name of the kept file: the benchmark with its options, and the lines of the table that are made of it."""


def table(kept: dict[str, dict[str, Any]]) -> str:
    """Return the Speed table in Markdown, and below it on what and by which code it was measured."""
    lines = [line for name, report in kept.items() for line in TABLE[name][1](report["rows"])]
    machine = next(iter(kept.values()))["machine"]
    commits = ", ".join(sorted({str(report["git_commit"])[:10] for report in kept.values()}))
    about = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, Python {machine['python']}"
    return f"{markdown([('compared', 'times as fast, or as said'), *lines])}\n\n{about}; code at {commits}."


def with_table(text: str, kept: dict[str, dict[str, Any]]) -> str:
    """Return a Markdown text with the Speed table between its two marks."""
    return replace_marked(text, "speed", table(kept))


def measure_all(folder: Path) -> None:
    """Run all benchmarks of the table one after the other. Raises RunFailed at the end if one failed."""
    failed = []
    for name, (line, _) in TABLE.items():
        print(f"\n{name}: {line}", flush=True)
        t0 = now()
        command = [sys.executable, "-m", "benchmarks", *line.split(), "--out", f"{folder.resolve()}/{name}.json"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"{now() - t0:.0f} s", flush=True)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(TABLE)} benchmarks failed: {', '.join(failed)}")


def main(settings: Settings) -> None:
    """Write the table. Raises UsageError if there are no figures, RunFailed if a benchmark failed."""
    folder = Path(settings.results_dir or KEPT)
    if settings.measure:
        folder = Path(settings.results_dir or ROOT / "results" / hardware("cpu") / "benchmarks")
        measure_all(folder)
    text = with_table(README.read_text(encoding="utf-8"), load(folder))
    with write_atomically(README) as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(f"table in {README}")
