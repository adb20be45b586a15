"""The results as tidy tables: notebooks, figures and READMEs are made from these, and these from results/."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import cases
from experiments.cases import FAMILY, LOST_UPDATES, Comparison, Family, Setup
from experiments.grid import KEPT, Experiment
from experiments.real import TIMELINE, Measured, Runs
from experiments.simulated import Rows, so_far
from experiments.text_cases import SELDOM, TEXT, LanguageModel, LowCommunication
from experiments.virtual_cases import CODED, METHODS, Cluster, Compression, WholeFamily
from gradwire.core.records.errors import UsageError
from gradwire.core.records.tables import finished_epochs, phase_times, totals, workers
from strategies import Strategy

PREDICTION = Path("benchmarks") / "prediction.json"
CLUSTER, WHOLE = "cluster", "whole_family"
KINDS: dict[str, type[Experiment]] = {
    **dict.fromkeys(cases.COMPARED, Comparison), FAMILY: Family, CLUSTER: Cluster,
    METHODS: Compression, CODED: Compression, WHOLE: WholeFamily, TEXT: LanguageModel,
    SELDOM: LowCommunication,
}  # fmt: skip


def of_size(quick: bool) -> dict[str, Experiment]:
    """Return all experiments by their names, whole or quick."""
    return {name: kind(name, quick) for name, kind in KINDS.items()}


EXPERIMENTS = of_size(quick=False)


@dataclass(frozen=True)
class Results:
    """The measurements on this machine: tables with the columns of Setup and `seed`; of servers part, server and seed.

    runs: one row a run: workers, accuracy (0 to 1, held out, of the last epoch), samples_per_s,
    epoch_s, updates and mb (of an epoch; like the next, means without the first), step_s (seconds an update),
    mb_per_step (MB sent by all ranks in a step; NaN where it is not counted), counted (False where the MB come from a
    formula), stale (mean staleness; NaN where it is 0 by construction), last_stale (that of the last worker's
    gradients), last_share (0 to 1) of the samples that it computed, dropped (% of the gradients).
    epochs: one row a run and epoch: train_loss, and what `so_far` returns.
    phases: one row a run and role: the seconds of an epoch in each phase, mean over ranks and epochs without the first.
    ranks: one row a run and rank: role, mb_sent per step, share (0 to 1) of the samples that all workers computed.
    staleness: how many (count) of each worker's gradients had each staleness.
    metadata: the facts of every run, by its name, and its machine.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    phases: pd.DataFrame
    ranks: pd.DataFrame
    staleness: pd.DataFrame
    metadata: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Servers(Results):
    """Of the server family also: the grid as measured, the rates chosen, and lost updates."""

    grid: pd.DataFrame  # server, lr, seed, accuracy (NaN: diverged)
    rates: dict[str, float]
    lost: pd.DataFrame  # mode, clients, repeat, made, kept


def folder(directory: str | Path | None = None) -> Path:
    """Return where the results are: `directory`, what $EXPERIMENT_RESULTS names, or those of the repository."""
    return Path(directory or os.environ.get("EXPERIMENT_RESULTS") or KEPT)


def comparison(*names: str, directory: str | Path | None = None) -> Results:
    """Return the results of some experiments, by default of all three that compare strategies with the built-ins.

    They are those in `folder(directory)`. Raises UsageError if some are missing, or are of other machines or versions.
    """
    return Results(**_measured(names or tuple(cases.COMPARED), folder(directory)))


def family(directory: str | Path | None = None) -> Servers:
    """Return the results of the server family. Raises UsageError if some are missing."""
    where = folder(directory)
    tables = _measured((FAMILY,), where)
    store, lost = Runs(where, FAMILY), pd.read_csv(where / LOST_UPDATES)
    experiment = Family(FAMILY, _is_quick(store))
    return Servers(**tables, grid=experiment.accuracies(store), rates=experiment.tuned(store), lost=lost)


def _measured(names: Sequence[str], where: Path) -> dict[str, Any]:
    """Return the fields of Results, a run of several experiments once."""
    metadata: dict[str, dict[str, Any]] = {}
    parts: list[dict[str, pd.DataFrame]] = []
    for name in names:
        store = Runs(where, name)
        experiment = KINDS[name](name, _is_quick(store))
        assert isinstance(experiment, Measured)
        if absent := experiment.missing(where):
            raise UsageError(
                f"{where}: {len(absent)} runs of {name} are missing, such as {absent[0]}; "
                f"make them with python experiments/run.py {name}"
            )
        here = {run: entry | {"machine": store.facts["machine"]} for run, entry in store.runs.items()}
        if len({str((entry["machine"], entry["options"]["device"])) for entry in (metadata | here).values()}) > 1:
            alike = ", ".join(names[: names.index(name) + 1])
            raise UsageError(f"{where}: the runs of {alike} were not made alike; delete one, make it again")
        for final in experiment.finals(experiment.tuned(store)):
            if final.run_name not in metadata and not str(final.run_name).startswith(TIMELINE):
                parts.append(_tables_of(store, str(final.run_name), final.strategy, experiment.about(final)))
        metadata |= here
    tables = {kind: pd.concat([part[kind] for part in parts], ignore_index=True) for kind in parts[0]}
    return {**tables, "metadata": metadata}


def _is_quick(store: Runs) -> bool:
    return any(name.endswith("-quick") for name in store.runs)


def simulated(name: str, directory: str | Path | None = None) -> Rows:
    """Return the rows of an experiment in virtual time. Raises UsageError if there are none."""
    rows = Rows(folder(directory), name)
    if rows.table.empty:
        raise UsageError(f"no results in {rows.folder}: make them with python experiments/run.py {name}")
    return rows


def load(name: str, directory: str | Path | None = None) -> Any:
    """Return the results of one experiment, whatever its kind. Raises UsageError."""
    if name in cases.COMPARED:
        return comparison(name, directory=directory)
    return family(directory) if name == FAMILY else simulated(name, directory)


def predictions(directory: str | Path | None = None) -> pd.DataFrame:
    """Return the rows of the benchmark of predictions there; where there are none, of the repository's."""
    path = folder(directory) / PREDICTION
    return pd.DataFrame(pd.read_json(path if path.exists() else KEPT / PREDICTION, typ="series")["rows"])


def _tables_of(store: Runs, name: str, strategy: Strategy, of: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the tables of one run, as Results has them, with the columns `of`."""
    table, staleness = store.rows(name), store.staleness(name)
    trained, numbers = workers(table), totals(table)
    samples = trained.groupby("epoch")["samples"].sum().astype(float)
    epochs = so_far(table, strategy, 1)
    weighted = (trained["train_loss"] * trained["samples"]).groupby(trained["epoch"]).sum()
    epochs["train_loss"] = (weighted / samples).to_numpy()
    spans = epochs[["updates", "seconds", "mb"]].diff().fillna(epochs)
    later, spans = (table[table["epoch"] > 1], spans[1:]) if len(epochs) > 1 else (table, spans)
    n_workers, steps = trained["rank"].nunique(), int(table["step"].max())
    ranks = table.groupby(["rank", "role"], as_index=False)["bytes_sent"].sum(min_count=1)
    ranks["mb_sent"] = ranks["bytes_sent"].astype(float) / steps / 1e6
    ranks["share"] = ranks["rank"].map(trained.groupby("rank")["samples"].sum().astype(float)) / samples.sum()
    stale, dropped = strategy.traits.asynchronous, table["dropped"].fillna(0).sum()
    on_time = n_workers - getattr(strategy, "n_backup", 0)  # gradients of a synchronous update
    applied = staleness["count"].sum() if stale else on_time * epochs["updates"].iloc[-1]
    lateness = (staleness["staleness"] * staleness["count"]).groupby(staleness["worker"]).sum()
    of_worker = lateness / staleness.groupby("worker")["count"].sum()
    run = {
        "run": name, "workers": n_workers, "accuracy": numbers["test_accuracy"],
        "samples_per_s": numbers["samples_per_s"], "updates": spans["updates"].mean(),
        "epoch_s": spans["seconds"].mean(), "mb": spans["mb"].mean(),
        "step_s": spans["seconds"].sum() / spans["updates"].sum(),
        "mb_per_step": ranks["mb_sent"].sum(min_count=1), "counted": store.runs[name]["bytes"] == "counted",
        "stale": lateness.sum() / applied if stale else float("nan"),
        "last_stale": of_worker.iloc[-1] if stale else float("nan"), "last_share": ranks["share"].iloc[-1],
        "dropped": 100 * dropped / (applied + dropped),
    }  # fmt: skip
    phases = (phase_times(later) / finished_epochs(later)).reset_index()
    tables = {"runs": pd.DataFrame([run]), "epochs": epochs, "phases": phases, "ranks": ranks, "staleness": staleness}
    return {kind: rows.assign(**of) for kind, rows in tables.items()}


def pick(table: pd.DataFrame, setup: Setup) -> pd.DataFrame:
    """Return the rows of one setup."""
    for name, value in asdict(setup).items():
        table = table[table[name] == value]
    return table


def first_try_of(results: Results) -> list[Setup]:
    """Return the setups of a first try with 8 ranks, whose training set is smaller in quick results."""
    size = results.runs.loc[results.runs["n_gpus"] == cases.FIRST_TRY[0].n_gpus, "train_size"].iloc[0]
    return [replace(setup, train_size=int(size)) for setup in cases.FIRST_TRY]


def seconds_to(results: Results, accuracy: float, setup: Setup) -> pd.Series:
    """Return when each run of a setup, by seed, first was so accurate (0 to 1) after an epoch; NaN if it never was.

    In seconds from the first step on: the first epoch counts, evaluation does not.
    """
    epochs = pick(results.epochs, setup)
    reached = epochs[epochs["accuracy"] >= accuracy].groupby("seed")["seconds"].min()
    return reached.reindex(sorted(epochs["seed"].unique()))


def ratio_to(results: Results, setup: Setup) -> pd.Series:
    """Return, for each seed, samples/s of a setup over those of the built-in with as many workers; none without one."""
    peer = replace(setup, strategy="ring_all_reduce_builtin")
    if setup.strategy.startswith("param_server"):
        peer = replace(setup, strategy="param_server_builtin", n_gpus=2)  # DataParallel was measured with two workers
    rates = [pick(results.runs, compared).set_index("seed")["samples_per_s"] for compared in (setup, peer)]
    has_peer = setup.strategy != "single" and setup.workers == peer.workers
    return (rates[0] / rates[1]).dropna() if has_peer else pd.Series(dtype=float)


def provenance(results: Results) -> str:
    """Return on what, with what, how and by which code the results were measured, from their records."""
    runs = list(results.metadata.values())  # all of one machine
    on, seeds = runs[0]["machine"], map(str, sorted(results.runs["seed"].unique()))
    of = ("device", "dataset", "optimizer", "lr", "momentum", "dtype")
    device, dataset, optimizer, lr, momentum, dtype = (_every(str(run["options"][name]) for run in runs) for name in of)
    commits = _every(re.sub("^(.{10})[^-]*", r"\1", str(run["git_commit"])) for run in runs)
    return (
        f"machine   {on['cpu']}, {on['cores']} cores, {on['memory_gib']} GiB, {_every(on['gpus']) or 'no GPU'}, "
        f"device {device}\n"
        f"software  torch {on['torch']}, Python {on['python']}, {on['platform'].partition('-')[0]}\n"
        f"training  {dataset}, {optimizer}, learning rate {lr}, momentum {momentum}, {dtype}\n"
        f"runs      {len(results.runs)}, seeds {', '.join(seeds)}, code at {commits}"
    )


def _every(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values)))
