"""Train on a cluster in virtual time: the same strategies, on machines and a network that are numbers.

python simulate.py --strategy async_param_server --n_gpus 16 --bandwidth 1gbit --latency 50us

python simulate.py --strategy ring_all_reduce --sweep n_gpus=2,4,8,16 --sweep bandwidth=1gbit,10gbit

python simulate.py --strategy sharded_ring --n_gpus 64 --parameters 7e9 --bandwidth 400gbit --compute 0.4s

python simulate.py --script train_ddp.py --n_gpus 16 --bandwidth 1gbit --compute 20ms    # --help after it: its options

The options are those of train.py, and those of the cluster. The training is real, bit for bit; only the time is not: a
rank's clock is moved on by what a step takes (--compute, --flops, or as timed on this machine) and by its messages.
With --parameters, or a --model on --device meta, nothing is trained: steps are only timed, of models of any size.
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from tqdm import tqdm
from tyro.conf import UseAppendAction

from gradwire.core.records import tables
from gradwire.core.records.atomic import check_writable_by, write_atomically
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import resolve
from gradwire.core.training.command_line import guarded, parse_with
from gradwire.core.training.options import Options
from gradwire.core.training.preflight import prepare
from gradwire.core.training.run import run
from gradwire.core.workloads.data import Data
from gradwire.networks.card import Card
from gradwire.pictures.seeds import SEED, note_on_batches, over_seeds, short
from gradwire.torch_scripts.command import is_script, simulate_script
from gradwire.virtual_time import cluster as clusters
from gradwire.virtual_time import footprints
from gradwire.virtual_time.calibration import part_of_a_step
from gradwire.virtual_time.cluster import ClusterOptions, fit
from gradwire.virtual_time.dry_run import DryRun, check_model, dry_run
from gradwire.virtual_time.dry_run import check as check_dry
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.meta_models import sizes_of
from gradwire.virtual_time.network import Network

_NOT_VARIED = ("help", "list", "sweep", "results_dir", "run_name", "save", "checkpoint_dir", "resume", "replay")


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
        """Return what a sweep shows."""
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
        """Return what is shown of a run beside its summary: also who was to die, and did not."""
        late = [death for death in self.time.deaths if death.time > self.time.now()]
        lines = [
            f"not killed     rank {death.rank}: the run had ended before {death.time:g} virtual s" for death in late
        ]
        return "\n".join([*lines, clusters.busiest(self.cards)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> None:
        if is_script(given):
            simulate_script(given, __doc__ or "")
            return
        options, chosen = parse_with(given, None, __doc__ or "", SimulationOptions)
        if chosen.sweep or chosen.fits_gb is not None:
            sweep(given, chosen)
        else:
            print(_run(options, chosen).text())

    return guarded(work)


def _run(options: Options, chosen: SimulationOptions, quiet: bool = False) -> Simulation | DryRun:
    """Train, or only time steps. Raises UsageError, RunFailed."""
    if not _is_dry(options, chosen):
        return simulate(options, chosen, quiet)
    return dry_run(options, chosen, chosen.parameters, chosen.steps, quiet, chosen.layers)


def _is_dry(options: Options, chosen: SimulationOptions) -> bool:
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
    time = VirtualTime(network, clusters.Compute(options, phases), deaths, facts, **cluster.machine())
    table = run(options, quiet, time.launcher())
    step = sum(seconds for name, seconds in phases.items() if name not in ("encode", "decode"))
    return Simulation(options, table, time, len(part_of_a_step(options, data)) / step if step else math.inf)


def check(options: Options, cluster: ClusterOptions) -> tuple[Options, Network, list[Death], Data]:
    """Find whatever is wrong before anything is written; return what a run is made of. Raises UsageError."""
    options = fit(options)
    cluster.check_compute()
    network = cluster.make_network(options)
    deaths = cluster.deaths(options.strategy, options.roles)
    launcher = VirtualTime(network, lambda *_: 0.0).launcher()
    data = prepare(resolve(options, launcher), launcher)
    clusters.check_memory(options, data)
    return options, network, deaths, data


# Sweeps


def sweep(given: Sequence[str], chosen: SimulationOptions) -> None:
    """Run every combination of the varied options; print a table, write it, and draw the speed-up.

    Raises UsageError, RunFailed.
    """
    axes = _axes(chosen)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    runs = [_varied(given, one) for one in combinations]  # before the first starts: none is wrong
    if chosen.fits_gb is not None:
        models = [(options, sizes_of(options, one.parameters, one.layers)) for options, one in runs]
        print(footprints.table(combinations, models, chosen.fits_gb))
        return
    folder = Path(runs[0][0].results_dir)
    check_writable_by("results_dir", folder)
    rows = []
    for one, (options, chosen) in zip(combinations, tqdm(runs, unit="run", leave=False), strict=True):
        rows.append({"strategy": options.strategy.name, **one, **_run(options, chosen, quiet=True).figures()})
    frame = pd.DataFrame(rows)
    print(over_seeds(frame, axes).to_string(index=False, float_format=short))
    if note := _note_on_batches(combinations, [options for options, _ in runs]):
        print(note)
    path = folder / f"sweep-{datetime.now():%Y%m%d-%H%M%S-%f}.csv"
    with write_atomically(path) as unfinished:
        frame.to_csv(unfinished, index=False)
    print(f"table   {path}")
    if "n_gpus" in axes:
        from gradwire.pictures import plot  # matplotlib is slow to load

        others = [name for name in axes if name not in ("n_gpus", SEED)]
        plot.draw_sweep(frame, others, path.with_suffix(".png"), _alike(*runs[0], axes))
        print(f"figure  {path.with_suffix('.png')}")


def _note_on_batches(combinations: Sequence[Mapping[str, str]], runs: Sequence[Options]) -> str:
    """Return one line if strategies, all else being the same, take batches of different sizes; else ""."""
    batches: dict[str, list[tuple[str, int | None]]] = {}
    for values, options in zip(combinations, map(fit, runs), strict=True):
        others = str({name: value for name, value in values.items() if name != "strategy"})
        n_gpus = options.n_gpus or 1
        size = options.global_batch_size or options.batch_size * options.strategy.count_workers(n_gpus)
        batches.setdefault(others, []).append((options.strategy.name, size))
    return next(filter(None, map(note_on_batches, batches.values())), "")


def _alike(options: Options, chosen: SimulationOptions, axes: Mapping[str, Any]) -> str:
    """Return what all runs of a sweep have alike, for the title of its figure."""
    values = {
        "parameters": chosen.parameters, "layers": chosen.layers if chosen.layers > 1 else None,
        "bandwidth": options.bandwidth or clusters.BANDWIDTH, "latency": options.latency or clusters.LATENCY,
        "compute": chosen.compute, "flops": chosen.flops, "batch_size": options.batch_size,
        "jitter": options.jitter or None,
    }  # fmt: skip
    trained = [f"{options.model} on {options.dataset}"] if not axes.keys() & {"parameters", "model", "dataset"} else []
    known = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if value is not None and name not in axes
    ]
    return ", ".join([*(trained if chosen.parameters is None else []), *known])


def _axes(chosen: SimulationOptions) -> dict[str, list[str]]:
    """Return the values of each varied option. Raises UsageError."""
    axes: dict[str, list[str]] = {}
    for text in chosen.sweep:
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        if not values or "" in values.split(","):
            raise UsageError(f"--sweep {text}: must be NAME=VALUE,VALUE,..., such as n_gpus=1,2,4")
        if name in _NOT_VARIED:
            raise UsageError(f"--sweep {text}: {name} cannot be varied; vary an option of the training or the cluster")
        if name in axes:
            raise UsageError(f"--sweep {text}: {name} is given twice; give all its values at once")
        axes[name] = values.split(",")
    return axes


def _check_fits(options: Options, gigabytes: float, is_dry: bool) -> None:
    if not 0 < gigabytes <= 1e9:
        raise UsageError(f"--fits_gb {gigabytes:g}: must be above 0 and at most 1e9, such as 80")
    if not is_dry:
        raise UsageError(f"--fits_gb {gigabytes:g}: of --parameters, or of a --model on --device meta; give one")
    if options.n_gpus is not None:
        raise UsageError(f"--n_gpus {options.n_gpus}: --fits_gb finds it; leave one out")


def _varied(given: Sequence[str], values: dict[str, str]) -> tuple[Options, SimulationOptions]:
    """Return the options of the command line with these of the sweep. Raises UsageError."""
    more = [f"--{name}={value}" for name, value in values.items()]
    try:
        options, chosen = parse_with([*given, *more], None, "", SimulationOptions)
        if chosen.fits_gb is not None:
            _check_fits(options, chosen.fits_gb, _is_dry(options, chosen))
            check_model(fit(options), chosen, chosen.parameters, chosen.steps, chosen.layers)
        elif _is_dry(options, chosen):
            check_dry(fit(options), chosen, chosen.parameters, chosen.steps, chosen.layers)
        else:
            check(options, chosen)
    except UsageError as error:
        if not values:
            raise
        combination = ", ".join(f"{name}={value}" for name, value in values.items())
        raise UsageError(f"--sweep, at {combination}: {error}") from None
    for name in ("run_name", "save", "checkpoint_dir"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: every run of a sweep has files of its own; leave it out")
    return options, chosen
