"""Train on a cluster in virtual time: the same strategies, on machines and a network that are numbers.

python simulate.py --strategy async_param_server --n_gpus 16 --bandwidth 1gbit --latency 50us

python simulate.py --strategy ring_all_reduce --sweep n_gpus=2,4,8,16 --sweep bandwidth=1gbit,10gbit

python simulate.py --strategy sharded_ring --n_gpus 64 --parameters 7e9 --compute 0.4s

python simulate.py --script train_ddp.py --n_gpus 16 --compute 20ms    # a script of yours

The options are those of train.py, and those of the cluster. The training is real, bit for bit; only the time is not: a
rank's clock is moved on by what a step takes (--compute, --flops, or as timed on this machine) and by its messages.
With --parameters, or a --model on --device meta, nothing is trained: steps are only timed, of models of any size.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pandas as pd
from tyro.conf import UseAppendAction

from gradwire.command_line import parse_with, run_command
from gradwire.core.records import tables
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import prepare, resolve
from gradwire.core.training.run import run
from gradwire.core.transports.throttle import FAIR
from gradwire.core.workloads.data import Data
from gradwire.networks.card import Card
from gradwire.networks.units import ACKNOWLEDGED
from gradwire.options import Options
from gradwire.torch_scripts.command import is_script, simulate_script
from gradwire.virtual_time import cluster as clusters
from gradwire.virtual_time.calibration import part_of_a_step
from gradwire.virtual_time.cluster import ClusterOptions, fit
from gradwire.virtual_time.dry_run import DryRun, dry_run
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import Network

_FIRST = (  # of --help
    "n_gpus", "bandwidth", "latency", "compute", "parameters", "sweep", "epochs", "batch_size", "results_dir"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(ClusterOptions):
    """The cluster, and what is varied."""

    sweep: Annotated[tuple[str, ...], UseAppendAction] = ()
    """Vary an option: NAME=VALUE,VALUE,... Given several times: every combination. Makes a table, a CSV and, of
    n_gpus, a figure of the speed-up. Of several seeds, as in seed=0,1,2, table and figure show mean and range."""
    parameters: float | None = None
    """Only time steps, of a model of so many parameters, such as 7e9: no data, no arithmetic, no memory. With
    --device meta instead, of a --model: any of torchvision's by its name, for ImageNet."""
    layers: int = 1
    """Layers of equal size in these parameters. The passes compute one after the other."""
    fits_gb: float | None = None
    """Find the smallest n_gpus at which no rank holds more than so many GB, in closed form, and take no step; with
    --sweep a table of them: strategies below each other, all else side by side."""
    steps: int | None = None
    """How many steps are timed then. Default: 1, or about 40 where the first is not like those that follow."""


@dataclass(frozen=True)
class Simulation:
    """A run in virtual time."""

    options: Options
    table: pd.DataFrame  # of epochs and ranks
    time: VirtualTime
    alone: float  # samples a second of a worker that computes the same steps and needs no network

    @property
    def cards(self) -> list[tuple[Card, float]]:
        """The network's cards and the percentage of the time in which each was busy, the busiest first."""
        return clusters.shares_of(self.time.network.cards(), self.time.now())

    def figures(self) -> dict[str, Any]:
        """Return the columns of a sweep."""
        totals = tables.totals(self.table)
        rate, cards = totals["samples_per_s"], self.cards
        return {
            "workers": self.options.roles.count("worker"),
            "virtual_s": totals["seconds"],
            "samples_per_s": rate,
            "speedup": None if rate is None or self.alone == math.inf else rate / self.alone,
            **{name: totals[name] for name in tables.scores(self.table)},
            "busiest_card": f"{cards[0][0].name}, {cards[0][1]:.0f} %" if cards else "none",
        }

    def text(self) -> str:
        """Return the lines of a run below its summary, such as the deaths that did not happen."""
        late = [death for death in self.time.deaths if death.time > self.time.now()]
        lines = [
            f"not killed     rank {death.rank}: the run had ended before {death.time:g} virtual s" for death in late
        ]
        if self.time.handling:
            percent = 100 * self.time.network.acknowledged
            lines.append(f"a message       {self.time.handling.text()}; acknowledgements {percent:.1f} %")
        return "\n".join([*lines, clusters.busiest(self.cards)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> None:
        if is_script(given):
            simulate_script(given, __doc__ or "")
            return
        options, chosen = parse_with(given, None, __doc__ or "", SimulationOptions, _FIRST)
        if chosen.sweep or chosen.fits_gb is not None:
            from gradwire.virtual_time.sweep import sweep  # which imports this module

            sweep(given, chosen)
        else:
            print(run_or_time(options, chosen).text())

    return run_command(work)


def run_or_time(options: Options, chosen: SimulationOptions, quiet: bool = False) -> Simulation | DryRun:
    """Train, or only time steps. Raises UsageError, RunFailed."""
    if not is_dry(options, chosen):
        return simulate(options, chosen, quiet)
    return dry_run(options, chosen, chosen.parameters, chosen.steps, quiet, chosen.layers)


def is_dry(options: Options, chosen: SimulationOptions) -> bool:
    """Return whether steps are only timed. Raises UsageError."""
    dry = chosen.parameters is not None or options.device == "meta"
    if chosen.layers != 1 and not dry:
        raise UsageError(f"--layers {chosen.layers}: of --parameters, which is missing; a --model has its own layers")
    if chosen.steps is not None and not dry:
        raise UsageError(
            "--steps: of what is only timed; a training has --epochs; give --parameters or --device meta too"
        )
    return dry


def simulate(options: Options, cluster: ClusterOptions, quiet: bool = False) -> Simulation:
    """Run once in virtual time, and write the records. Raises UsageError, RunFailed."""
    options, network, deaths, data = check(options, cluster)
    phases = clusters.phase_seconds(cluster, options, data)
    card = {"bandwidth": options.bandwidth, "latency": options.latency}
    facts = {"cluster": {**card, **dataclasses.asdict(cluster), "phase_seconds": phases}}
    if handling := clusters.handling(cluster, options):
        network.acknowledged = ACKNOWLEDGED if network.sharing == FAIR else 0.0  # as train.py --bandwidth has none
        facts["cluster"] |= {"message_seconds": dataclasses.asdict(handling), "acknowledged": network.acknowledged}
    time = VirtualTime(
        network, clusters.Compute(options, phases), deaths, facts, **cluster.machine(), handling=handling
    )
    table = run(options, quiet, time.launcher())
    step = sum(seconds for name, seconds in phases.items() if name not in ("encode", "decode"))
    return Simulation(options, table, time, len(part_of_a_step(options, data)) / step if step else math.inf)


def check(options: Options, cluster: ClusterOptions) -> tuple[Options, Network, list[Death], Data]:
    """Check everything before a file is written; return the parts of a run. Raises UsageError."""
    options = fit(options)
    cluster.check_compute()
    network = cluster.make_network(options)
    deaths = cluster.deaths(options.strategy, options.roles)
    launcher = VirtualTime(network, lambda *_: 0.0).launcher()
    data = prepare(resolve(options, launcher), launcher)
    clusters.check_memory(options, data)
    return options, network, deaths, data
