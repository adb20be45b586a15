"""The report of a run: its remarks, its records and its summary."""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gradwire.core.launchers import Launcher
from gradwire.core.records import files, tables
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.events import RunEvents
from gradwire.core.records.machine import digests, git_commit, machine
from gradwire.core.strategy.cost_model import sources
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Choice
from gradwire.core.training.options import CoreOptions
from gradwire.core.training.orders import RankResult
from gradwire.core.training.wing import Record
from gradwire.core.transports.inbox import NOBODY
from gradwire.core.workloads import tasks
from gradwire.core.workloads.data import Data


def describe_place(options: CoreOptions, launcher: Launcher) -> str:
    """Return in one line what must be known of where the ranks run."""
    if not launcher.processes:
        return f"{options.world_size} ranks in {launcher.name}, in one process."
    if notice := options.strategy.notice(options.n_gpus or 1):
        return notice
    if options.device == "cpu":
        return f"No GPU in use: {options.world_size} CPU process(es)."
    gpus = torch.cuda.device_count()
    if gpus < options.world_size:
        return f"Warning: {options.world_size} processes share {gpus} GPU(s); timings will show it."
    return f"{options.world_size} process(es), one GPU each."


def _evaluated(strategy: Strategy) -> str:
    """Return in one line which parameters the scores are of, where the replicas may differ."""
    shown = " ".join((type(strategy).model.__doc__ or "").split("\n\n")[0].split())
    return f"The replicas may differ; the scores are of {shown.removeprefix('Return ')}"


def remarks(options: CoreOptions, launcher: Launcher) -> list[str]:
    """Return what else a user should know of the options."""
    strategy, found = options.strategy, []
    if not strategy.traits.agree:
        found.append(_evaluated(strategy))
    if strategy.traits.workers_may_die and not launcher.restarts:
        found.append(f"Under {launcher.name} the death of any process ends the run; without it, workers may die.")
    for name, value in options.own_defaults.items():
        if getattr(options, name) == value:
            owners = [of for of, choice in options.choices().items() if name in choice.defaults(options.chosen[of])]
            owner = strategy.name if owners[0] == "strategy" else f"--{owners[0]} {options.chosen[owners[0]].name}"
            found.append(f"--{name} {value} (the default of {owner})")
    if strategy.traits.defaults.get("momentum") == 0 and options.optimizer == "sgd" and options.momentum:
        found.append("Late gradients act like momentum: if it does not learn, try --momentum 0.")
    return found


def samples_unused(
    options: CoreOptions, table: pd.DataFrame, n_train: int, deaths: Sequence[Mapping[str, Any]]
) -> dict[str, int | None]:
    """Return how many samples, of all epochs, no update has used, and how many of these were parts of dead workers.

    The others came too late, or were skipped. None where other workers give them, or it is not known.
    """
    unused = of_the_dead = None
    traits = options.strategy.traits
    if traits.workers_may_die and not traits.asynchronous and not options.is_resumed:
        plan, roles = options.plan(n_train), options.roles
        unused = int((n_train - table.loc[table["role"] == tables.SERVER, "samples"]).sum())
        of_the_dead = 0
        for death in deaths:
            worker = roles[: death["rank"]].count("worker")
            for step in range(death["step"], options.epochs * plan.n_steps):
                start, stop = plan.bounds(step % plan.n_steps, worker)
                of_the_dead += stop - start
    return {"samples_unused": unused, "samples_unused_of_dead_workers": of_the_dead}


def arrivals_as_text(arrivals: Iterable[Sequence[int]]) -> str:
    """Return the arrivals of each rank as they are recorded: see `gradwire.checkpoints.replay`."""
    of_ranks = [" ".join("-" if rank == NOBODY else str(rank) for rank in of_one) for of_one in arrivals]
    return ";".join(of_ranks).rstrip(";")


def write(
    options: CoreOptions, results: list[RankResult], data: Data, launcher: Launcher
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Write the records, with what wings add; return the table, and what else is recorded. Raises RunFailed."""
    assert options.run_name is not None
    strategy, name, task = options.strategy, options.strategy.name, tasks.find(data.task)
    events = RunEvents([result.events for result in results])
    hashes = {result.rank: result.parameter_hash for result in results}
    deaths = [death for result in results for death in result.deaths]
    clocks = {result.rank: result.alignment._asdict() for result in results if result.alignment}
    table = tables.epoch_table(events, name, options.n_gpus or 1, options.roles)
    record = Record(table, results, {"transport": launcher.transport, "bytes": "counted"})
    for wing in options.wings:
        wing.record(options, record)
    table = record.table
    metadata = {
        "strategy": name,
        "n_gpus": options.n_gpus,
        "processes": options.world_size,
        "roles": options.roles,
        "task": task.name,
        "loss_is_a_mean_of": task.unit,
        "better": dict(task.better),
        **tables.totals(table),
        "replicas_identical": len(set(hashes.values())) == 1,
        "parameter_hash": hashes,
        "optimizer_bytes": {result.rank: result.optimizer_bytes for result in results},
        "threads": {result.rank: result.threads for result in results},
        "deaths": deaths,
        **({"choice": dataclasses.asdict(results[0].choice)} if results[0].choice else {}),
        **samples_unused(options, table, data.n_train, deaths),
        "staleness_of": next((result.applied for result in results if result.applied), "gradient"),
        "arrivals": arrivals_as_text(result.arrivals for result in results),
        "options": options.recorded(),
        **record.facts,
        "sources": digests(sources(type(strategy))),
        "remark": describe_place(options, launcher) + ("" if strategy.traits.agree else f" {_evaluated(strategy)}"),
        **launcher.facts,
        **({"clocks": clocks} if clocks else {}),
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": machine(),
        "git_commit": git_commit(),
    }
    try:
        files.write_run(options.results_dir, options.run_name, events, table, metadata, record.files)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; no records were written") from error
    return table, metadata


def conclude(
    options: CoreOptions, table: pd.DataFrame, facts: Mapping[str, Any], n_train: int, quiet: bool, launcher: Launcher
) -> None:
    """Show the summary; compare the parameters. Raises RunFailed if some differ that must not."""
    strategy, hashes = options.strategy, facts["parameter_hash"]
    if not quiet:
        where = {"device": options.device} if launcher.processes else {"time": "virtual"}
        world = {"strategy": strategy.name, "n_gpus": options.n_gpus, **where}
        world |= {"dataset": options.dataset, "model": options.model}
        print(tables.summary(table, world, facts["staleness_of"]))
        if strategy.traits.asynchronous and (workers := options.roles.count("worker")) > 1:
            print(
                f"compare with   --strategy single --workers_like {workers}: one process on the same batches.\n"
                "               Stale gradients need a smaller --lr the more workers there are."
            )
        if choice := facts.get("choice"):
            print(textwrap.fill(f"took           {Choice(**choice).text()}", tables.WIDTH, subsequent_indent=" " * 15))
        if died := sorted({death["rank"] for death in facts["deaths"] if not death["returned"]}):
            print(f"died           rank {', '.join(map(str, died))}; the others went on")
        if unused := facts["samples_unused"]:
            of_the_dead = f"{facts['samples_unused_of_dead_workers']} of them the parts of dead workers"
            print(f"unused samples {unused} of {options.epochs * n_train}, {of_the_dead}")
        if sizes := {rank: nbytes / 1e6 for rank, nbytes in facts["optimizer_bytes"].items() if nbytes}:
            print(f"optimizer MB   of state, by rank {tables.by_rank(sizes)}")
        for line in (line for wing in options.wings for line in wing.summary(options, facts)):
            print(line)
        print(f"records        {Path(options.results_dir) / str(options.run_name)}.{{csv,json,events.csv.gz}}")
    for wing in options.wings:
        wing.conclude(options, facts, quiet)
    if strategy.traits.agree and not facts["replicas_identical"]:
        raise RunFailed(f"the replicas differ at the end, which {strategy.name} must never let happen: {hashes}")
