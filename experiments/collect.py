"""The results of the experiments as two tidy tables: one row a run, one row a run and epoch.

Everything in the notebooks, the figures and the README is made from these, and these from the files in `results/`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.runs import MODELS, TIMELINE
from records.files import TRACE_SUFFIX, load_metadata, load_table
from records.tables import finished_epochs, phase_times, totals, workers
from workloads.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "results" / "amd-epyc-2-cores"  # what is in the repository
_MODEL = {option: label for label, option in MODELS.items()}
CASE = ["model", "strategy", "n_gpus", "global_batch_size", "train_size"]  # the same in all runs of one case


@dataclass(frozen=True)
class Results:
    """What was measured in one folder.

    runs: one row a run: the columns of CASE, seed, run (name of its files), workers, samples (of an epoch), accuracy
    (0 to 1, held out, of the last epoch), epoch_s (seconds, mean without the first), samples_per_s (likewise),
    mb_per_step (MB sent by all ranks in a step; NaN where it is not counted).
    epochs: one row a run and epoch: CASE, seed, epoch, seconds (since the start, evaluation excluded), train_loss,
    test_loss, accuracy.
    phases: one row a run and role: CASE, seed, role, and the seconds of an epoch in each phase (mean over ranks).
    traffic: one row a run and rank: CASE, seed, rank, role, mb_sent and mb_received per step.
    metadata: of every run, by its name.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    phases: pd.DataFrame
    traffic: pd.DataFrame
    metadata: dict[str, dict[str, Any]]


def load(directory: str | Path | None = None) -> Results:
    """Return the results in `directory`; by default those named by $EXPERIMENT_RESULTS, or those of the repository.

    Raises UsageError if there are none.
    """
    folder = Path(directory or os.environ.get("EXPERIMENT_RESULTS") or KEPT)
    paths = sorted(path for path in folder.glob("*.json") if not path.name.startswith(TIMELINE))
    paths = [path for path in paths if not path.name.endswith(TRACE_SUFFIX)]
    if not paths:
        raise UsageError(f"no results in {folder}: make them with python experiments/run.py all")
    parts: dict[str, list[pd.DataFrame]] = {"runs": [], "epochs": [], "phases": [], "traffic": []}
    metadata = {}
    for path in paths:
        table = load_table(path.with_name(f"{path.stem}.csv"))
        metadata[path.stem] = load_metadata(path)
        case = _case(metadata[path.stem])
        for name, part in _tables(path.stem, table).items():
            parts[name].append(part.assign(**case))
    return Results(**{name: pd.concat(frames, ignore_index=True) for name, frames in parts.items()}, metadata=metadata)


def _case(metadata: dict[str, Any]) -> dict[str, Any]:
    options = metadata["options"]
    names = ("strategy", "n_gpus", "global_batch_size", "train_size", "seed")
    return {name: options[name] for name in names} | {"model": _MODEL.get(options["model"], options["model"])}


def _tables(run: str, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    numbers, trained, epochs = totals(table), workers(table), finished_epochs(table)
    by_epoch = table.groupby("epoch")
    seconds = by_epoch["epoch_s"].max()
    steps = int(table["step"].max())
    weighted = (trained["train_loss"] * trained["samples"]).groupby(trained["epoch"]).sum()
    per_step = table.groupby(["rank", "role"], as_index=False)[["bytes_sent", "bytes_received"]].sum(min_count=1)
    sent = numbers["bytes_sent"]
    return {
        "runs": pd.DataFrame(
            [
                {
                    "run": run,
                    "workers": trained["rank"].nunique(),
                    "samples": trained.groupby("epoch")["samples"].sum().iloc[0],
                    "accuracy": numbers["test_accuracy"],
                    "epoch_s": seconds.iloc[1:].mean() if epochs > 1 else seconds.iloc[0],
                    "samples_per_s": numbers["samples_per_s"],
                    "mb_per_step": None if sent is None else sent / steps / 1e6,
                }
            ]
        ).astype({"mb_per_step": float}),
        "epochs": pd.DataFrame(
            {
                "epoch": seconds.index,
                "seconds": seconds.cumsum().to_numpy(),
                "train_loss": (weighted / trained.groupby("epoch")["samples"].sum()).to_numpy(),
                "test_loss": by_epoch["test_loss"].max().to_numpy(),
                "accuracy": by_epoch["test_accuracy"].max().to_numpy(),
            }
        ),
        "phases": (phase_times(table) / epochs).reset_index(),
        "traffic": pd.DataFrame(
            {
                "rank": per_step["rank"],
                "role": per_step["role"],
                "mb_sent": per_step["bytes_sent"].astype(float) / steps / 1e6,
                "mb_received": per_step["bytes_received"].astype(float) / steps / 1e6,
            }
        ),
    }


def pick(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Return the rows in which every named column has the wanted value, or one of them if it is a list."""
    for name, value in wanted.items():
        table = table[table[name].isin(value if isinstance(value, list) else [value])]
    return table


def seconds_to(results: Results, accuracy: float, **wanted: Any) -> pd.DataFrame:
    """Return CASE, seed and seconds: when each run first was so accurate (0 to 1) after an epoch; NaN if never."""
    epochs = pick(results.epochs, **wanted)
    reached = epochs[epochs["accuracy"] >= accuracy].groupby([*CASE, "seed"])["seconds"].min()
    every = epochs.groupby([*CASE, "seed"]).size().index
    return reached.reindex(every).reset_index()


def ratio_to(results: Results, ours: dict[str, Any], peer: dict[str, Any]) -> pd.Series:
    """Return samples/s of the case `ours` over that of `peer`, one ratio a seed."""
    rates = [pick(results.runs, **case).set_index("seed")["samples_per_s"] for case in (ours, peer)]
    return (rates[0] / rates[1]).dropna()


def spread(values: Sequence[float] | pd.Series, digits: int, scale: float = 1.0) -> str:
    """Return "mean ± half the range" as text, "-" if nothing was measured."""
    series = pd.Series(values, dtype=float).dropna() * scale
    if series.empty:
        return "-"
    return f"{series.mean():.{digits}f} ± {(series.max() - series.min()) / 2:.{digits}f}"


def provenance(results: Results) -> str:
    """Return on what, with what and by which code the results were measured; one line each, from their records."""
    machines = [entry["machine"] for entry in results.metadata.values()]

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(machine[name]) for machine in machines}))

    gpus = sorted({gpu for machine in machines for gpu in machine["gpus"]})
    commits = sorted({str(entry["git_commit"]) for entry in results.metadata.values()})
    seeds = sorted(results.runs["seed"].unique())
    return "\n".join(
        (
            f"machine   {all_of('cpu')}, {all_of('cores')} cores, {all_of('memory_gib')} GiB; "
            f"GPUs: {', '.join(gpus) or 'none'}",
            f"software  torch {all_of('torch')}, Python {all_of('python')}, {all_of('platform')}",
            f"runs      {len(results.runs)}, seeds {', '.join(map(str, seeds))}, code at {', '.join(commits)}",
        )
    )
