"""`simulate.py --script FILE`: its options, its records and what it prints."""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import pandas as pd
import torch
from tqdm import tqdm
from tyro.conf import OmitArgPrefixes, arg

from records import files, tables
from records.atomic import check_writable_by
from records.errors import RunFailed, UsageError
from records.events import RunEvents
from records.machine import git_commit, machine
from records.parsing import read_options
from records.sources import digests
from records.unfinished import claimed
from torch_scripts.collectives import ALL_REDUCES
from torch_scripts.virtual import Cluster, ScriptRecorder
from torch_scripts.virtual_run import Script, run_in_virtual_time
from training.options import Options, read_unit
from transports.card import FAIR
from transports.units import seconds
from virtual_time.cluster import ClusterOptions, busiest

TRIED = (2, 11), (2, 15)  # the oldest and the newest torch
_MOST_RANKS = 1024


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """A script of yours with torch.distributed, on a virtual cluster. Its own options follow after --."""

    script: str
    """A Python file that torchrun would run, with gloo on the CPU: python simulate.py --script train.py -- --epochs 3"""
    n_gpus: int = 4
    """Ranks, each on a machine of its own."""
    bandwidth: str = "10gbit"
    """Of each rank's card, for each direction."""
    latency: str = "50us"
    """Of every message."""
    compute: str | None = None
    """What a forward and backward pass take, one third and two thirds of it; nothing else takes time. Default: what
    each rank's thread takes on this machine."""
    all_reduce: Literal["ring", "naive", "all_gather"] = "ring"
    """How an all-reduce is done."""
    racks: int = 1
    """Racks into which the ranks are split; 1: all at one switch."""
    rack_bandwidth: str | None = None
    """Of each rack's uplink, for each direction. Default: a card's bandwidth."""
    sharing: Literal["fair", "in_order"] = FAIR
    """How messages share a card: all at once, as with TCP, or one after the other."""
    seed: int = 0
    """Of each rank's Python and NumPy random numbers, with its number added; torch begins as in a new process."""
    results_dir: str = "results"
    """Where the records are written."""
    run_name: str | None = None
    """Default: the script's name and the time."""


def run_script(given: Sequence[str], description: str) -> None:
    """Run a script as a command line says, write its records, and print a summary. Raises UsageError, RunFailed."""
    mine, own = _split(given)
    options = _read(mine, description)
    script = Script(options.script, own)
    of_run = Options(n_gpus=options.n_gpus, bandwidth=options.bandwidth, latency=options.latency)
    shared = {name: getattr(options, name) for name in ("racks", "rack_bandwidth", "sharing", "compute")}
    network = ClusterOptions(**shared).network(of_run)
    compute = None if options.compute is None else read_unit("compute", options.compute, seconds)
    stem = Path(options.script).stem
    name = options.run_name or f"{stem}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    if not TRIED[0] <= (here := tuple(map(int, torch.__version__.split(".")[:2]))) <= TRIED[1]:
        old, new = (".".join(map(str, version)) for version in TRIED)
        print(f"--script: tried with torch {old} to {new}, and this is {'.'.join(map(str, here))}", file=sys.stderr)
    check_writable_by("results_dir", Path(options.results_dir))
    with claimed(options.results_dir, name), TemporaryDirectory() as folder:
        recorders = [ScriptRecorder(rank, script.folder) for rank in range(options.n_gpus)]
        for recorder in recorders:
            recorder.write_to(Path(folder) / f"{recorder.rank}.events")
        with tqdm(unit="pass", leave=False, desc=stem) as progress:
            cluster = run_in_virtual_time(
                script, network, recorders, compute, ALL_REDUCES[options.all_reduce], options.seed, progress
            )
        for rank in cluster.ranks:
            rank.recorder.mark("epoch_s", rank.clock)
        events = RunEvents([recorder.close() for recorder in recorders])
        table = _write(options, script, cluster, events, name)
    print(_summary(options, cluster, table, stem))
    print(f"records        {Path(options.results_dir) / name}.{{csv,json,events.csv.gz}}")


def _split(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after the first --."""
    given = list(given)
    at = given.index("--") if "--" in given else len(given)
    return given[:at], given[at + 1 :]


def _read(given: Sequence[str], description: str) -> ScriptOptions:
    """Return the options. Raises UsageError."""
    kind = dataclasses.make_dataclass(
        "CommandLine", [("options", Annotated[ScriptOptions, OmitArgPrefixes, arg(name="script")])], kw_only=True
    )
    read: Any = read_options(given, kind, description)
    options: ScriptOptions = read.options
    if not 1 <= options.n_gpus <= _MOST_RANKS:
        raise UsageError(f"--n_gpus {options.n_gpus}: must be from 1 to {_MOST_RANKS}, each a thread")
    return options


def _write(options: ScriptOptions, script: Script, cluster: Cluster, events: RunEvents, name: str) -> pd.DataFrame:
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
        "sources": digests(sorted({line.rpartition(":")[0] for r in cluster.ranks for line in r.recorder.lines})),
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


def _summary(options: ScriptOptions, cluster: Cluster, table: pd.DataFrame, stem: str) -> str:
    """Return what is shown of a run."""
    world = {"script": stem, "n_gpus": options.n_gpus, "time": "virtual", "bandwidth": options.bandwidth}
    lines = [tables.summary(table, world)]
    if len(ends := cluster.ranks[0].passes) > 1:
        lines.append(f"a step takes   {(ends[-1] - ends[0]) / (len(ends) - 1):.4g} s, from one backward pass to the next")
    if unread := cluster.calls.unread():
        lines.append(f"not received   {unread[0]}" + (f" and {len(unread) - 1} more" if len(unread) > 1 else ""))
    end = max(cluster.world.time, 1e-12)
    cards = [(card, 100 * card.busy / end) for card in cluster.world.network.cards() if card.nbytes]
    return "\n".join([*lines, busiest(sorted(cards, key=lambda pair: -pair[1]))])
