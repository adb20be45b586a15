"""`simulate.py --script FILE` and `explore.py --script FILE`: their options, records and output."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pandas as pd
import torch
from tqdm import tqdm

from gradwire.core.records import files, tables
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import RunFailed, UsageError, one_of
from gradwire.core.records.events import RunEvents
from gradwire.core.records.known import read_options
from gradwire.core.records.machine import digests, git_commit, machine
from gradwire.core.records.unfinished import claimed
from gradwire.core.training.options import Options, read_unit
from gradwire.networks.units import seconds
from gradwire.strategies import expected
from gradwire.torch_scripts.collectives import ANY, plans
from gradwire.torch_scripts.every_order import examine
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.virtual import Cluster, ScriptRecorder, run_in_virtual_time
from gradwire.virtual_time.cluster import NetworkOptions, busiest, shares_of, with_link

TRIED = ("2.11", "2.13", "2.15")  # versions of torch
_MOST_RANKS = 1024
T = TypeVar("T", bound="_Options")


@dataclass(frozen=True, kw_only=True)
class _Options:
    script: str
    """A Python file that torchrun would run, with gloo on the CPU. Its own options follow after --."""
    n_gpus: int = 2
    """Ranks."""
    seed: int = 0
    """Of each rank's Python and NumPy random numbers, with its number added; torch begins as in a new process."""


@dataclass(frozen=True, kw_only=True)
class ClusterScript(NetworkOptions, _Options):
    """A script of yours with torch.distributed, on a virtual cluster, one rank a machine."""

    bandwidth: str | None = None
    """Of each rank's card, for each direction. Default: 10gbit."""
    latency: str | None = None
    """Of every message. Default: 50us."""
    network: str | None = None
    """A file of ranks and links in place of them: see gradwire/networks/graph.py."""
    compute: str | None = None
    """What a forward and backward pass take, one third and two thirds of it; nothing else takes time. Default: what
    each rank's thread takes on this machine."""
    all_reduce: str = "ring"
    """How an all-reduce is done: ring, naive, all_gather, recursive_doubling, halving_doubling, swing, double_tree or,
    with --racks, hierarchical_ring; see strategies/all_reduce/."""
    results_dir: str = "results"
    """Where the records are written."""
    run_name: str | None = None
    """Default: the script's name and the time."""


@dataclass(frozen=True, kw_only=True)
class OrderedScript(_Options):
    """A script of yours with torch.distributed, in every order of its messages."""

    at_most: int = 20_000
    """Orders that are run."""


def is_script(given: Sequence[str]) -> bool:
    """Return whether a command line names a script of the user's."""
    return any(one == "--script" or one.startswith("--script=") for one in given)


def explore_script(given: Sequence[str], description: str) -> None:
    """Run a script in every order, and print what holds in all. Raises UsageError, RunFailed: something does not."""
    options, script = _read(given, OrderedScript, description)
    if not 1 <= options.at_most <= 10**7:
        raise UsageError(f"--at_most {options.at_most}: must be from 1 to {10**7}")
    with tqdm(unit="order", leave=False, disable=None) as bar:
        report = examine(script, options.n_gpus, options.seed, options.at_most, bar.update)
    print(report.text(f"{options.script}, {options.n_gpus} ranks"))
    if report.broken:
        raise RunFailed(f"{options.script}: {report.broken}")


def simulate_script(given: Sequence[str], description: str) -> None:
    """Run a script on a cluster, write its records, and print a summary. Raises UsageError, RunFailed."""
    options, script = _read(given, ClusterScript, description)
    one_of(options, "all_reduce", expected.all_reduces())
    link = {name: getattr(options, name) for name in ("n_gpus", "bandwidth", "latency", "network")}
    linked = with_link(Options(**link))
    network = options.make_network(linked)
    options = dataclasses.replace(options, bandwidth=linked.bandwidth, latency=linked.latency)
    rates = network.rates or ANY
    if options.all_reduce not in expected.candidates(options.n_gpus, 0, rates):
        raise UsageError(f"--all_reduce {options.all_reduce}: needs racks; give --racks, a divisor of --n_gpus")
    compute = None if options.compute is None else read_unit("compute", options.compute, seconds)
    stem = Path(options.script).stem
    name = options.run_name or f"{stem}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    check_writable_by("results_dir", Path(options.results_dir))
    with claimed(options.results_dir, name), TemporaryDirectory() as folder:
        recorders = [ScriptRecorder(rank, script.folder) for rank in range(options.n_gpus)]
        for recorder in recorders:
            recorder.write_to(Path(folder) / f"{recorder.rank}.events")
        with tqdm(unit="pass", leave=False, desc=stem, disable=None) as progress:
            cluster = run_in_virtual_time(
                script, network, recorders, compute, plans(options.all_reduce, rates), options.seed, progress
            )
        for rank in cluster.ranks:
            rank.recorder.mark("epoch_s", rank.clock)
        events = RunEvents([recorder.close() for recorder in recorders])
        table = _write(options, script, cluster, events, name)
    print(_summary(options, cluster, table, stem))
    print(f"records        {Path(options.results_dir) / name}.{{csv,json,events.csv.gz}}")


def _read(given: Sequence[str], kind: type[T], description: str) -> tuple[T, Script]:
    """Return the options before the first --, and the script with its own, which follow. Raises UsageError."""
    at = list(given).index("--") if "--" in given else len(given)
    options = read_options(given[:at], kind, description)
    if not torch.__version__.startswith(TRIED):
        print(f"--script: tried with torch {', '.join(TRIED)}, and this is {torch.__version__}", file=sys.stderr)
    if not 1 <= options.n_gpus <= _MOST_RANKS:
        raise UsageError(f"--n_gpus {options.n_gpus}: must be from 1 to {_MOST_RANKS}, each a thread")
    return options, Script(options.script, given[at + 1 :])


def _write(options: ClusterScript, script: Script, cluster: Cluster, events: RunEvents, name: str) -> pd.DataFrame:
    """Write the records; return the table. Raises RunFailed."""
    roles = ["worker"] * options.n_gpus
    table = tables.epoch_table(events, Path(script.path).name, options.n_gpus, roles)
    metadata = {
        "strategy": Path(script.path).name,
        "n_gpus": options.n_gpus,
        "processes": 1,
        "roles": roles,
        **tables.totals(table),
        "replicas_identical": None,
        "deaths": [],
        "options": dataclasses.asdict(options) | {"arguments": script.arguments[1:]},
        "transport": "simulated",
        "bytes": "counted",
        "sources": digests(set().union(*(rank.recorder.files for rank in cluster.ranks))),
        "remark": f"{options.n_gpus} ranks in virtual time, threads of one process.",
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": machine(),
        "git_commit": git_commit(),
    }
    try:
        files.write_run(options.results_dir, name, events, table, metadata)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; no records were written") from error
    return table


def _summary(options: ClusterScript, cluster: Cluster, table: pd.DataFrame, stem: str) -> str:
    """Return what is shown of a run."""
    between = {"network": options.network} if options.network else {"bandwidth": options.bandwidth}
    world = {"script": stem, "n_gpus": options.n_gpus, "time": "virtual", **between}
    lines = [tables.summary(table, world)]
    if len(ends := cluster.ranks[0].passes) > 1:
        lines.append(f"a step takes   {(ends[-1] - ends[0]) / (len(ends) - 1):.4g} s, between two backward passes")
    if unread := cluster.unread():
        lines.append(f"not received   {unread[0]}" + (f" and {len(unread) - 1} more" if len(unread) > 1 else ""))
    return "\n".join([*lines, busiest(shares_of(cluster.world.network.cards(), cluster.world.time))])
