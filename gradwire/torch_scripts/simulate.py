"""A script or function with torch.distributed, once on the virtual cluster: what it is given, records and returns."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from tqdm import tqdm
from tyro.conf import UseAppendAction

from gradwire.core.records import files, tables
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.errors import RunFailed, UsageError, one_of
from gradwire.core.records.events import RunEvents
from gradwire.core.records.machine import digests, git_commit, machine
from gradwire.core.records.unfinished import run_lock
from gradwire.core.transports.throttle import FAIR
from gradwire.diagnosis.hashes import packed
from gradwire.networks.units import seconds
from gradwire.networks.wing import read_unit
from gradwire.options import Options
from gradwire.python_errors import in_python
from gradwire.results import HASHES
from gradwire.strategies import predictions
from gradwire.torch_scripts.collectives import ANY, plans
from gradwire.torch_scripts.script import Function, Program
from gradwire.torch_scripts.virtual import Cluster, run_in_virtual_time
from gradwire.torch_scripts.virtual_rank import ScriptRecorder, Speed
from gradwire.torch_scripts.watcher import Watcher
from gradwire.virtual_time.cluster import NetworkOptions, busiest, check_speed, shares_of, with_link
from gradwire.virtual_time.network import Network

TRIED = ("2.11", "2.13", "2.15")  # versions of torch
_MOST_RANKS = 1024


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """What is run, by how many."""

    script: str
    """A Python file, or -m and a module, that torchrun would run, with gloo on the CPU. Its own options follow
    after --."""
    n_gpus: int = 2
    """Ranks."""
    on_cpu: bool = False
    """To the script, cuda and nccl mean the CPU and gloo."""
    seed: int = 0
    """Of each rank's Python and NumPy random numbers, with its number added; torch begins as in a new process."""

    def check_ranks(self) -> None:
        """Check the number of ranks. Raises UsageError."""
        if not 1 <= self.n_gpus <= _MOST_RANKS:
            raise UsageError(f"--n_gpus {self.n_gpus}: must be from 1 to {_MOST_RANKS}, each a thread")


def note_version() -> None:
    """Print a line if this torch was not tried."""
    if not torch.__version__.startswith(TRIED):
        print(f"--script: tried with torch {', '.join(TRIED)}, and this is {torch.__version__}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class ClusterScript(NetworkOptions, ScriptOptions):
    """A script of yours with torch.distributed, on a virtual cluster, one rank a machine."""

    bandwidth: str | None = None
    """Of each rank's card, for each direction. Default: 10gbit."""
    latency: str | None = None
    """Of every message. Default: 50us."""
    network: str | None = None
    """A file of ranks and links in place of them: see gradwire/networks/graph.py."""
    compute: str | None = None
    """What a forward and backward pass take, one third and two thirds of it, cut by the floating-point operations;
    nothing else takes time. Default: what each rank's thread takes on this machine."""
    flops: float | None = None
    """Instead of that: floating-point operations a second of a rank; all that torch counts take time."""
    all_reduce: str = "ring"
    """How an all-reduce is done: ring, naive, all_gather, recursive_doubling, halving_doubling, swing, double_tree or,
    with --racks, hierarchical_ring; see strategies/all_reduce/."""
    check: bool = False
    """Also name what is silently wrong in the script, as gradwire check does."""
    results_dir: str = "results"
    """Where the records are written."""
    run_name: str | None = None
    """Default: the script's name and the time."""
    hashes: bool = False
    """Keep hashes of the batch, gradients and parameters at each step of a rank's first optimizer, by which
    python -m gradwire why tells why two runs differ."""
    sweep: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Run with all these values of an option, such as n_gpus=2,4,8, and show a table; given several times, with all
    combinations."""


@dataclass(frozen=True, repr=False)
class SimulatedProgram:
    """What a program has done on the virtual cluster."""

    results: list[Any]
    """What the function has returned, by rank."""
    seconds: float
    """Virtual seconds until the last rank has ended."""
    seconds_a_step: float | None
    """Between two steps of the optimizer, or else two backward passes; None: there are no two."""
    bytes: int
    """Sent by all ranks."""
    table: pd.DataFrame
    """A row for each rank, as in the CSV of a run."""
    text: str
    """What is shown of it."""

    def __repr__(self) -> str:
        return self.text


def simulate(
    function: Callable[..., Any], n_gpus: int = 2, *, args: Sequence[Any] = (), bandwidth: str | None = None,
    latency: str | None = None, network: str | None = None, racks: int = 1, rack_bandwidth: str | None = None,
    sharing: Literal["fair", "in_order"] = FAIR, overhead: str = "0s", compute: str | None = None,
    flops: float | None = None, all_reduce: str = "ring", seed: int = 0, results_dir: str | None = None,
    run_name: str | None = None, quiet: bool = False,
) -> SimulatedProgram:  # fmt: skip
    """Run `function(*args)` on every rank of a cluster in virtual time, as simulate.py --script runs a file.

    The function may be defined anywhere, also in a notebook. It calls `torch.distributed.init_process_group("gloo")`
    itself; RANK and WORLD_SIZE are in its environment. Each rank has copies of `args` and of what the function uses of
    its script or notebook. `compute`: what a forward and backward pass take, such as "20ms"; or `flops`: a rank's
    floating-point operations a second; by default they take what each rank's thread takes here. The other options are
    those of simulate.py --script. Records are written if `results_dir` is given. `quiet`: no progress bar. Raises
    UsageError, RunFailed.
    """
    with in_python({}):
        program = Function(function, args)
        if run_name is not None and results_dir is None:
            raise UsageError(
                f"--run_name {run_name}: names the records, which only --results_dir asks for; give it too"
            )
        options = ClusterScript(
            script=program.name, n_gpus=n_gpus, bandwidth=bandwidth, latency=latency, network=network, racks=racks,
            rack_bandwidth=rack_bandwidth, sharing=sharing, overhead=overhead, compute=compute, flops=flops,
            all_reduce=all_reduce, seed=seed, results_dir=results_dir or "results", run_name=run_name,
        )  # fmt: skip
        one_of(options, "sharing", ("fair", "in_order"))
        note_version()
        return run_on_cluster(options, program, quiet, writes=results_dir is not None)


def run_on_cluster(
    options: ClusterScript, program: Program, quiet: bool = False, writes: bool = True, watcher: Watcher | None = None
) -> SimulatedProgram:
    """Run a program on a cluster, and write its records if it `writes`. Raises UsageError, RunFailed, Deadlock."""
    options, network, speed = prepare(options)
    rates = network.rates or ANY
    folder, stem = Path(options.results_dir), Path(program.name).stem
    name = options.run_name or f"{stem}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    if writes:
        check_writable_by("results_dir", folder)
    with run_lock(folder, name) if writes else nullcontext(), TemporaryDirectory() as temporary:
        recorders = [ScriptRecorder(rank, program.folder) for rank in range(options.n_gpus)]
        for recorder in recorders:
            recorder.write_to(Path(temporary) / f"{recorder.rank}.events")
        with tqdm(unit="pass", leave=False, desc=stem, disable=quiet or None) as progress:
            cluster = run_in_virtual_time(
                program, network, recorders, speed, plans(options.all_reduce, rates), options.seed, progress, watcher,
                options.hashes,
            )  # fmt: skip
        for rank in cluster.ranks:
            rank.recorder.mark("epoch_s", rank.clock)
        events = RunEvents([recorder.close() for recorder in recorders])
        table = tables.epoch_table(events, program.name, options.n_gpus, ["worker"] * options.n_gpus)
        if writes:
            _write(options, program, cluster, events, table, name)
    text = _summary(options, cluster, table, stem)
    if writes:
        text += f"\nrecords        {folder / name}.{{csv,json,events.csv.gz}}"
    results, clocks = [rank.result for rank in cluster.ranks], [rank.clock for rank in cluster.ranks]
    step = _seconds_a_step(cluster)
    return SimulatedProgram(results, max(clocks), step, int(tables.totals(table)["bytes_sent"] or 0), table, text)


def prepare(options: ClusterScript) -> tuple[ClusterScript, Network, Speed]:
    """Return the options with their defaults, the network, and how fast ranks compute. Raises UsageError."""
    options.check_ranks()
    one_of(options, "all_reduce", predictions.all_reduces())
    link = {name: getattr(options, name) for name in ("n_gpus", "bandwidth", "latency", "network")}
    linked = with_link(Options(**link))
    network = options.make_network(linked)
    options = dataclasses.replace(options, bandwidth=linked.bandwidth, latency=linked.latency)
    if options.all_reduce not in predictions.candidates(options.n_gpus, 0, network.rates or ANY):
        raise UsageError(f"--all_reduce {options.all_reduce}: needs racks; give --racks, a divisor of --n_gpus")
    check_speed(options.compute, options.flops)
    compute = None if options.compute is None else read_unit("compute", options.compute, seconds)
    return options, network, Speed(compute, options.flops)


def _write(
    options: ClusterScript, program: Program, cluster: Cluster, events: RunEvents, table: pd.DataFrame, name: str
) -> None:
    """Write the records. Raises RunFailed."""
    hashes: dict[str, bytes] = {}
    if options.hashes:
        ends = ((rank.rank, rank.hashes and rank.hashes.end()) for rank in cluster.ranks)
        if not (found := {rank: arrays for rank, arrays in ends if arrays}):
            raise RunFailed("--hashes: no rank made a step of an optimizer; leave it out; no records were written")
        hashes[str(Path(options.results_dir) / f"{name}{HASHES}")] = packed(found)
    metadata = {
        "strategy": program.name,
        "n_gpus": options.n_gpus,
        "processes": 1,
        "roles": ["worker"] * options.n_gpus,
        **tables.totals(table),
        "replicas_identical": None,
        "deaths": [],
        "options": dataclasses.asdict(options) | {"arguments": program.arguments[1:]},
        "transport": "simulated",
        "bytes": "counted",
        "sources": digests(set().union(*(rank.recorder.files for rank in cluster.ranks))),
        "remark": f"{options.n_gpus} ranks in virtual time, threads of one process.",
        "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        "machine": machine(),
        "git_commit": git_commit(),
    }
    try:
        files.write_run(options.results_dir, name, events, table, metadata, hashes)
    except OSError as error:
        where = error.filename or options.results_dir
        raise RunFailed(f"cannot write {where}: {error.strerror}; no records were written") from error


def _seconds_a_step(cluster: Cluster) -> float | None:
    ends = cluster.ranks[0].steps or cluster.ranks[0].passes
    return (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else None


def _summary(options: ClusterScript, cluster: Cluster, table: pd.DataFrame, stem: str) -> str:
    """Return what is shown of a run."""
    between = {"network": Path(options.network).name} if options.network else {"bandwidth": options.bandwidth}
    world = {"script": stem, "n_gpus": options.n_gpus, "time": "virtual", **between}
    lines = [tables.summary(table, world)]
    if (step := _seconds_a_step(cluster)) is not None:
        between_two = "steps of the optimizer" if cluster.ranks[0].steps else "backward passes"
        lines.append(f"a step takes   {step:.4g} s, between two {between_two}")
    if unread := cluster.unread():
        lines.append(f"not received   {unread[0]}" + (f" and {len(unread) - 1} more" if len(unread) > 1 else ""))
    return "\n".join(
        [*lines, busiest(shares_of(cluster.world.network.cards(), max(rank.clock for rank in cluster.ranks)))]
    )
