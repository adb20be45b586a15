"""What the clock misses of a step on the kernel's network, without and with what a message takes of processors.

python -m benchmarks handling --out handling.json     # as root: it makes network namespaces

Measured: ranks in namespaces whose links `tc` shapes (see `namespaces.py`), started by torchrun, with gloo; their steps
have no passes, and exchange and update the parameters of a CNN. plain_ms: as many steps in virtual time with the update
as timed here, on the same number of cores, and the latency 100 us. calibrated_ms: the same with what a message takes of
a core at each end, as measured here between two processes, and with acknowledgements, as simulate.py counts both
without --compute. Nothing is fitted. plain_error and error are plain_ms / measured_ms - 1 and calibrated_ms /
measured_ms - 1, in percent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from typing_extensions import override

from benchmarks import common
from benchmarks.accuracy import Clock, measure_kernel, of_a_step
from benchmarks.common import Row, figures
from benchmarks.points import BATCH, Point, build
from gradwire.core.strategy.tensors import layout_of
from gradwire.core.workloads import datasets
from gradwire.names import make_strategy
from gradwire.networks.units import ACKNOWLEDGED
from gradwire.virtual_time.calibration import time_phases
from gradwire.virtual_time.handling import handling_of, measure_handling
from gradwire.virtual_time.steps import Sizes, StepsJob

LATENCY = 100e-6
NETWORK = "cnn"


class WithoutPasses(Point):
    """A point at which nothing is computed but the update."""

    @override
    def job(self, steps: int) -> StepsJob:
        return StepsJob(self.options, Sizes(layout_of(build(self.network)).n), BATCH, steps)


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of what messages take."""

    repeats: int = 10
    """How many steps are timed, after one other."""
    ranks: tuple[int, ...] = (2, 4)
    """Numbers of ranks."""
    mbit: int = 100
    """Bandwidth of the links, in Mbit/s."""
    strategies: tuple[str, ...] = ("ring_all_reduce", "param_server")
    """What is measured."""


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row for each strategy and number of ranks."""
    handling = handling_of(measure_handling())
    steps = settings.repeats + 1
    for n in settings.ranks:
        grid = [WithoutPasses(make_strategy(name), NETWORK, n, settings.mbit) for name in settings.strategies]
        timed = {point.strategy.name: time_phases(point.options, datasets.load(point.options)) for point in grid}
        plain = Clock({f"{NETWORK} {name}": {"update": of["update"]} for name, of in timed.items()}, LATENCY)
        calibrated = replace(plain, handling=handling, acknowledged=ACKNOWLEDGED)
        for point, found in zip(grid, measure_kernel(grid, [steps] * len(grid)), strict=True):
            seconds, each = of_a_step(found, point)
            without, with_both = (clock.simulate(point, steps) for clock in (plain, calibrated))
            yield {
                "strategy": point.strategy.name, "ranks": n, "mbit": settings.mbit,
                "send_us": 1e6 * handling.send, "send_byte_ns": 1e9 * handling.send_byte,
                "receive_us": 1e6 * handling.receive, "receive_byte_ns": 1e9 * handling.receive_byte,
                "plain_ms": 1e3 * without, "calibrated_ms": 1e3 * with_both,
                **figures(measured_ms=[1e3 * measured for measured in each]),
                "plain_error": f"{100 * (without / seconds - 1):+.1f} %",
                "error": f"{100 * (with_both / seconds - 1):+.1f} %",
            }  # fmt: skip
