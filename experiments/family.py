"""The results of the server family as tidy tables, and what is shown of them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import family_runs, plots
from experiments.collect import folder, spread
from experiments.family_runs import FAMILY, LOST_UPDATES
from experiments.store import Store
from records.errors import UsageError
from records.files import EVENTS_SUFFIX
from records.tables import SERVER, workers
from training import Options

NAMES = {
    "sync": "synchronous",
    "backup": "1 backup worker",
    "bounded": "staleness bound 2",
    "async": "asynchronous",
    "downpour": "Downpour, every 4",
}
_COLUMNS = (
    ("updates", 0, 1),
    ("accuracy", 2, 100),
    ("epoch_s", 2, 1),
    ("mb", 0, 1),
    ("stale", 1, 1),
    ("dropped", 1, 1),
)


@dataclass(frozen=True)
class Family:
    """What was measured. `part` is one of SLOW, such as "final" and "slow"; `server` is one of SERVERS.

    grid: server, lr, seed, accuracy (0 to 1, NaN: diverged).
    rates: each server's learning rate, the best of the grid.
    runs: one row a run: part, server, seed, accuracy (0 to 1, held out, of the last epoch), updates and epoch_s (of an
    epoch, mean without the first), step_s (seconds an update, likewise), mb (sent by all ranks in an epoch), stale
    (mean staleness; NaN where it is 0 by construction), dropped (% of the gradients).
    epochs: part, server, seed, epoch, and since the start: updates, seconds (without evaluation), mb; accuracy.
    samples: part, server, seed, worker, share (of the samples that all workers computed, 0 to 1).
    staleness: part, server, seed, worker, staleness, count.
    lost: mode, clients, repeat, made, kept.
    metadata: of every run, by its name.
    """

    grid: pd.DataFrame
    rates: dict[str, float]
    runs: pd.DataFrame
    epochs: pd.DataFrame
    samples: pd.DataFrame
    staleness: pd.DataFrame
    lost: pd.DataFrame
    metadata: dict[str, dict[str, Any]]


def name_of(server: str) -> str:
    """Return how a server is called; without an entry in NAMES, by its name in SERVERS."""
    return NAMES.get(server, plots.in_words(server))


def load(directory: str | Path | None = None) -> Family:
    """Return the results in `directory`; by default those named by $EXPERIMENT_RESULTS, or those of the repository.

    Raises UsageError if some are missing, damaged, or of another machine.
    """
    where = folder(directory)
    store = Store.load(where, FAMILY)
    quick = any(name.endswith("-quick") for name in store.metadata)
    absent = missing(store, quick)
    if absent:
        raise UsageError(
            f"{where}: {len(absent)} runs of {FAMILY} are missing, such as {absent[0]}; "
            f"make them with python experiments/run.py {FAMILY}"
        )
    grid = family_runs.grid(store, quick)
    rates = family_runs.tuned(grid)
    parts: dict[str, list[pd.DataFrame]] = {"runs": [], "epochs": [], "samples": [], "staleness": []}
    for one in family_runs.finals(rates, quick):
        name = str(one.run_name)
        part, server = name.split("-")[:2]
        staleness = store.staleness[store.staleness["run"] == name].drop(columns="run")
        for key, table in _tables(one, store.rows(name), staleness).items():
            parts[key].append(table.assign(part=part, server=server, seed=one.seed))
    if len({str(entry["machine"]) for entry in store.metadata.values()}) > 1:
        raise UsageError(f"{where}: not all runs were made on one machine; delete some and make them again")
    lost = pd.read_csv(where / LOST_UPDATES)
    tables = {name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}
    return Family(grid=grid, rates=rates, lost=lost, metadata=store.metadata, **tables)


def missing(store: Store, quick: bool = False) -> list[str]:
    """Return the names of what the store of the family does not have: runs of either device, and the files."""

    def absent(runs: list[Options]) -> list[str]:
        there = (any(store.has(replace(one, device=device)) for device in ("cpu", "cuda")) for one in runs)
        return [str(one.run_name) for one, made in zip(runs, there, strict=True) if not made]

    timeline = family_runs.timeline(quick)
    names = absent([*family_runs.tuning(quick), timeline])
    if not names:  # else nobody knows the learning rates of the others
        rates = family_runs.tuned(family_runs.grid(store, quick))
        names = absent(family_runs.finals(rates, quick))
    files = (LOST_UPDATES, f"{timeline.run_name}{EVENTS_SUFFIX}")
    return names + [name for name in files if not (store.folder / name).exists()]


def _tables(options: Options, table: pd.DataFrame, staleness: pd.DataFrame) -> dict[str, pd.DataFrame]:
    server, trained = table[table["role"] == SERVER].set_index("epoch"), workers(table)
    updates, seconds = server["step"], table.groupby("epoch")["epoch_s"].max()
    mb = table.groupby("epoch")["bytes_sent"].sum().astype(float) / 1e6
    later = slice(2, None) if len(server) > 1 else slice(None)  # without the first epoch
    made = updates.diff().fillna(updates.iloc[0])
    samples = trained.groupby("rank")["samples"].sum().astype(float)
    asynchronous = options.strategy.traits.asynchronous
    on_time = trained["rank"].nunique() - getattr(options.strategy, "n_backup", 0)  # gradients of a synchronous update
    applied = staleness["count"].sum() if asynchronous else on_time * made.sum()
    dropped = server["dropped"].fillna(0).sum()
    run = {
        "accuracy": server["test_accuracy"].iloc[-1],
        "updates": made.loc[later].mean(),
        "epoch_s": seconds.loc[later].mean(),
        "step_s": seconds.loc[later].sum() / made.loc[later].sum(),
        "mb": mb.loc[later].mean(),
        "stale": (staleness["staleness"] * staleness["count"]).sum() / applied if asynchronous else float("nan"),
        "dropped": 100 * dropped / (applied + dropped),
    }
    epochs = {
        "epoch": server.index,
        "updates": updates.to_numpy(),
        "seconds": seconds.cumsum().to_numpy(),
        "mb": mb.cumsum().to_numpy(),
        "accuracy": server["test_accuracy"].to_numpy(),
    }
    return {
        "runs": pd.DataFrame([run]),
        "epochs": pd.DataFrame(epochs),
        "samples": pd.DataFrame({"worker": samples.index, "share": (samples / samples.sum()).to_numpy()}),
        "staleness": staleness,
    }


HEADER = (
    *("server", "learning rate", "updates an epoch", "test accuracy, %", "seconds per epoch", "MB per epoch"),
    *("mean staleness", "gradients dropped, %"),
)


def table(family: Family, part: str = "final") -> list[tuple[str, ...]]:
    """Return one part as text, its head first: mean ± standard deviation over the seeds."""
    rows: list[tuple[str, ...]] = [HEADER]
    for server, runs in family.runs[family.runs["part"] == part].groupby("server", sort=False):
        cells = [spread(runs[name], digits, scale) for name, digits, scale in _COLUMNS]
        rows.append((name_of(str(server)), f"{family.rates[str(server)]:g}", *cells))
    return rows


def grid_table(family: Family) -> list[tuple[str, ...]]:
    """Return the grid as text, its head first: held-out accuracy in %, mean over seeds; a star at the rate chosen."""
    cells = family.grid.groupby(["server", "lr"])["accuracy"]
    means, diverged = cells.mean(), cells.apply(lambda accuracy: int(accuracy.isna().sum()))
    rates = sorted(family.grid["lr"].unique())
    rows: list[tuple[str, ...]] = [("server", *(f"{lr:g}" for lr in rates))]
    for server, best in family.rates.items():
        texts = [
            "diverged " if diverged[server, lr] else f"{100 * means[server, lr]:.2f}" + ("*" if lr == best else " ")
            for lr in rates
        ]
        rows.append((name_of(server), *texts))
    return rows
