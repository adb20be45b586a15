"""The results of the experiments as tidy tables: one row a run, one row a run and epoch.

Everything in the notebooks, the figures and the README is made from these, and these from the files in `results/`.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from experiments.runs import EXPERIMENTS, LABELS, SEEDS, TIMELINE, Case
from experiments.store import Store, measured
from records.errors import UsageError
from records.tables import finished_epochs, phase_times, totals, workers

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "amd-epyc-2-cores"  # what is in the repository
CASE = [field.name for field in fields(Case)]


class Recorded(Protocol):
    """What was measured, whatever else is known of it."""

    @property
    def runs(self) -> pd.DataFrame:
        """One row a run, with its `seed`."""

    @property
    def metadata(self) -> dict[str, dict[str, Any]]:
        """Of every run, by its name."""


@dataclass(frozen=True)
class Results:
    """What was measured; the columns of CASE and `seed` are in all tables.

    runs: one row a run: run (name of its files), workers, samples (of an epoch), accuracy (0 to 1, held out, of the
    last epoch), epoch_s (seconds, mean without the first), samples_per_s (likewise), mb_per_step (MB sent by all
    ranks in a step; NaN where it is not counted), counted (False where the MB come from a formula).
    epochs: one row a run and epoch: epoch, seconds (since the start, evaluation excluded), train_loss, accuracy.
    phases: one row a run and role: role, and the seconds of an epoch in each phase, mean over ranks and epochs without
    the first.
    traffic: one row a run and rank: rank, role, mb_sent per step.
    metadata: of every run, by its name.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    phases: pd.DataFrame
    traffic: pd.DataFrame
    metadata: dict[str, dict[str, Any]]


def folder(directory: str | Path | None = None) -> Path:
    """Return where the results are: `directory`, what $EXPERIMENT_RESULTS names, or those of the repository."""
    return Path(directory or os.environ.get("EXPERIMENT_RESULTS") or KEPT)


def load(*experiments: str, directory: str | Path | None = None) -> Results:
    """Return the results of some experiments, by default of all three that compare strategies with the built-ins.

    They are those in `folder(directory)`. Raises UsageError if there are none, or if runs of one case differ.
    """
    where = folder(directory)
    parts: dict[str, list[pd.DataFrame]] = {"runs": [], "epochs": [], "phases": [], "traffic": []}
    metadata: dict[str, dict[str, Any]] = {}
    made: dict[tuple[Any, ...], tuple[str, list[Any]]] = {}
    for experiment in experiments or EXPERIMENTS:
        store = Store.load(where, experiment)
        for name, entry in store.metadata.items():
            if name in metadata or not len(store.rows(name)):
                continue
            metadata[name] = entry
            options = measured(entry["options"])
            case = {key: options[key] for key in CASE} | {"model": LABELS.get(options["model"], options["model"])}
            alike = [entry["machine"], *(value for key, value in options.items() if key not in (*CASE, "seed"))]
            # Machine and versions must be the same for all runs, the options for all of a case.
            for of, made_so in ((tuple(case.values()), alike), ((), alike[:1])):
                other, other_made_so = made.setdefault(of, (name, made_so))
                if other_made_so != made_so and not name.startswith(TIMELINE):
                    raise UsageError(f"{where}: {name} and {other} were not made alike; delete one, make it again")
            if not name.startswith(TIMELINE):
                for table_name, table in _tables(name, store.rows(name), entry).items():
                    parts[table_name].append(table.assign(**case, seed=options["seed"]))
    if not parts["runs"]:
        what = experiments[0] if len(experiments) == 1 else "all"
        raise UsageError(f"no results in {where}: make them with python experiments/run.py {what}")
    return Results(**{name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}, metadata=metadata)


def _tables(name: str, table: pd.DataFrame, metadata: dict[str, Any]) -> dict[str, pd.DataFrame]:
    numbers, trained, steps = totals(table), workers(table), int(table["step"].max())
    later = table[table["epoch"] > 1] if finished_epochs(table) > 1 else table
    seconds = table.groupby("epoch")["epoch_s"].max()
    weighted = (trained["train_loss"] * trained["samples"]).groupby(trained["epoch"]).sum()
    samples = trained.groupby("epoch")["samples"].sum()
    sent = table.groupby(["rank", "role"], as_index=False)["bytes_sent"].sum(min_count=1)
    mb_sent = sent["bytes_sent"].astype(float) / steps / 1e6
    run = {
        "run": name,
        "workers": trained["rank"].nunique(),
        "samples": samples.iloc[0],
        "accuracy": numbers["test_accuracy"],
        "epoch_s": later.groupby("epoch")["epoch_s"].max().mean(),
        "samples_per_s": numbers["samples_per_s"],
        "mb_per_step": mb_sent.sum(min_count=1),
        "counted": metadata["bytes"] == "counted",
    }
    epochs = {
        "epoch": seconds.index,
        "seconds": seconds.cumsum().to_numpy(),
        "train_loss": (weighted / samples).to_numpy(),
        "accuracy": table.groupby("epoch")["test_accuracy"].max().to_numpy(),
    }
    return {
        "runs": pd.DataFrame([run]),
        "epochs": pd.DataFrame(epochs),
        "phases": (phase_times(later) / finished_epochs(later)).reset_index(),
        "traffic": sent[["rank", "role"]].assign(mb_sent=mb_sent),
    }


def pick(table: pd.DataFrame, case: Case) -> pd.DataFrame:
    """Return the rows of one case."""
    for name, value in asdict(case).items():
        table = table[table[name] == value]
    return table


def seconds_to(results: Results, accuracy: float, case: Case) -> pd.Series:
    """Return when each run of a case, by seed, first was so accurate (0 to 1) after an epoch; NaN if it never was.

    In seconds from the first step on: the first epoch counts, evaluation does not.
    """
    epochs = pick(results.epochs, case)
    reached = epochs[epochs["accuracy"] >= accuracy].groupby("seed")["seconds"].min()
    return reached.reindex(sorted(epochs["seed"].unique()))


def ratio_to(results: Results, ours: Case, peer: Case) -> pd.Series:
    """Return samples/s of the case `ours` over that of `peer`, one ratio a seed."""
    rates = [pick(results.runs, case).set_index("seed")["samples_per_s"] for case in (ours, peer)]
    return (rates[0] / rates[1]).dropna()


def spread(values: Sequence[float] | pd.Series, digits: int, scale: float = 1.0) -> str:
    """Return "mean ± standard deviation" of a sample as text, with its size if that is not the number of seeds.

    "-" if nothing was measured; no deviation of one value.
    """
    series = pd.Series(values, dtype=float).dropna() * scale
    if series.empty:
        return "-"
    deviation = f" ± {series.std():.{digits}f}" if len(series) > 1 else ""
    return f"{series.mean():.{digits}f}{deviation}" + (f" (n={len(series)})" if len(series) != len(SEEDS) else "")


def _short(commit: str) -> str:
    return commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")


def provenance(results: Recorded) -> str:
    """Return on what, with what, how and by which code the results were measured, from their records."""
    machines = [entry["machine"] for entry in results.metadata.values()]
    options = [entry["options"] for entry in results.metadata.values()]

    def every(entries: Sequence[dict[str, Any]], name: str) -> str:
        return ", ".join(sorted({str(entry[name]) for entry in entries}))

    gpus = sorted({gpu for machine in machines for gpu in machine["gpus"]})
    system = ", ".join(sorted({machine["platform"].split("-")[0] for machine in machines}))
    seeds = ", ".join(map(str, sorted(results.runs["seed"].unique())))
    commits = ", ".join(sorted({_short(str(entry["git_commit"])) for entry in results.metadata.values()}))
    return "\n".join(
        (
            f"machine   {every(machines, 'cpu')}, {every(machines, 'cores')} cores, {every(machines, 'memory_gib')} "
            f"GiB, {', '.join(gpus) or 'no GPU'}, device {every(options, 'device')}",
            f"software  torch {every(machines, 'torch')}, Python {every(machines, 'python')}, {system}",
            f"training  {every(options, 'dataset')}, {every(options, 'optimizer')}, learning rate "
            f"{every(options, 'lr')}, momentum {every(options, 'momentum')}, {every(options, 'dtype')}",
            f"runs      {len(results.runs)}, seeds {seeds}, code at {commits}",
        )
    )
