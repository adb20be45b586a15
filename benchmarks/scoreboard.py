"""Enter every strategy of the project into the scoreboard, each tuned on the same small budget.

python -m benchmarks scoreboard    # hours; the entries go to results/scoreboard/; those that are there stay

On each cluster, with a seed that is none of the ten: three learning rates, with one or two values of one option. The
best is entered. All that was tried is kept with the entry. `python -m docs.pages` then writes the table.
"""

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm
from tyro.conf import Positional

from experiments.grid import ROOT
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.scoreboard import board, game
from gradwire.scoreboard import table as scoreboard
from gradwire.scoreboard.clusters import CLUSTERS
from gradwire.scoreboard.entry import ENTRIES, Entry, find

FOLDER, SEED = ROOT / "results" / "scoreboard", 100
RATES = (0.004, 0.008, 0.016)
ADAM = "--optimizer adam --momentum 0.9", RATES
OTHERS = {"dgs": ("--optimizer sgd", (0.03, 0.1, 0.3)), "demo": ("--optimizer sgd --momentum 0", RATES)}
_LOCAL = "--local_steps 4", "--local_steps 16"
VALUES = {
    "local_sgd": _LOCAL, "streaming_diloco": _LOCAL, "des_loc": _LOCAL, "noloco": _LOCAL, "decoupled_diloco": _LOCAL,
    "downpour": ("--n_push 1 --n_fetch 1", "--n_push 4 --n_fetch 4"), "easgd": ("--tau 4", "--tau 16"),
    "dgs": ("--density 0.01", "--density 0.1"), "demo": ("--top_k 4", "--top_k 16"),
    "async_param_server": ("--aggregate 1", "--aggregate 4"), "backup_workers": ("--n_backup 1", "--n_backup 2"),
    "sparta": ("--fraction 0.05", "--fraction 0.2"), "fully_sharded": ("--no_prefetch", "--prefetch"),
    "hierarchical_ring": ("--rack 1", "--rack 4"), "sharded_param_server": ("--servers 2", "--servers 4"),
    "overlapped_ring": ("--bucket_mb 1", "--bucket_mb 0.02"), "double_tree": ("--segments 2", "--segments 8"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is entered."""

    names: Positional[tuple[str, ...]] = ()
    """Strategies; default: all."""


def tuned(name: str, pool: Executor) -> tuple[Entry, dict[str, Any]]:
    """Return the entry with the best options on each cluster, and the score of each that was tried; None: no number."""
    base, rates = OTHERS.get(name, ADAM)
    values = {(place, value): find(name, {place: f"{base} --lr {rates[0]} {value}".strip()})
              for place in CLUSTERS for value in VALUES.get(name, ("",))}  # fmt: skip
    fits = {key: (_fit, (entry, key[0])) for key, entry in values.items()}
    steps = board.in_parallel(pool, fits, f"{name}: steps")
    tasks = {}
    for place, value in values:
        for rate in rates if (n := steps[place, value]) else ():
            options = f"{base} --lr {rate} {value}".strip()
            tasks[place, options] = _score, (find(name, {place: options}), place, n)
    found = board.in_parallel(pool, tasks, f"{name}: tuning")
    tried = {place: {options: found[at, options] for at, options in tasks if at == place} for place in CLUSTERS}
    chosen = {
        place: min((score, options) for options, score in of.items() if score is not None)[1]
        for place, of in tried.items()
    }
    return replace(find(name), options=chosen), tried


def _fit(entry: Entry, place: str) -> int | None:
    """Return how many steps fit; None if fewer do than the options need."""
    try:
        return game.fit(entry, place, CLUSTERS[place].budget)
    except UsageError:
        return None


def _score(entry: Entry, place: str, steps: int) -> float | None:
    try:
        return round(game.score(game.play(entry, place, SEED, steps, 2 * CLUSTERS[place].budget).parameters), 6)
    except RunFailed as error:
        if "take a smaller --lr" not in str(error):
            raise
        return None


def main(settings: Settings) -> None:
    """Enter them. Raises UsageError, RunFailed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = {name for name, facts in scoreboard.load(FOLDER).items() if facts["game"] == board.described()}
    with board.workers() as pool:
        for name in tqdm(settings.names or [name for name in ENTRIES if name not in kept], unit="entry"):
            entry, tried = tuned(name, pool)
            facts, page = board.make(entry, pool)
            board.keep(facts | {"tuning": {"seed": SEED, "scores": tried}}, page, FOLDER)
            tqdm.write(f"{name}\n{scoreboard.compared(facts, scoreboard.load(FOLDER))}")
