"""Where the link is the wall, a step in virtual time takes what it takes in real processes on such a link, within 10
percent.

python -m benchmarks prediction

A step of every synchronous strategy without a codec of its own, as its closed form predicts it (the path of its
`cost`), in virtual time, and in real processes whose messages are held back (--bandwidth), where computing is a sleep
of `--compute_ms`. Where a strategy sends in some steps only, the figure is the mean over a period of its steps.
`machine_ms` is a step of these processes without a link, with what copying and adding take on this machine's cores: so
long a worker computes in the other two. wall: whether the link takes at least 4 times that, so that the claim is for
this row. error is simulated_ms / measured_ms - 1, predicted_error the same of predicted_ms, in percent.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import common
from benchmarks.common import Row, figures
from gradwire import launch
from gradwire.core.training.checks import resolve
from gradwire.core.transports.throttle import IN_ORDER
from gradwire.networks.link import Link
from gradwire.networks.predict import predict
from gradwire.options import Options
from gradwire.virtual_time.dry_run import period
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.steps import Sizes, Steps, StepsJob, take_steps
from strategies import STRATEGIES, Strategy

LATENCY = 1e-4  # seconds


@dataclass(frozen=True)
class Settings(common.Settings):
    """Options of the benchmark of predictions."""

    repeats: int = 5
    """How many steps are timed, after as many others; figures are medians over them, with quartiles."""
    ranks: tuple[int, ...] = (2, 3, 4)
    """Numbers of ranks."""
    mbit: tuple[int, ...] = (200, 1000, 5000)
    """Bandwidths of the link, in Mbit/s."""
    parameters: tuple[int, ...] = (250_000, 1_000_000)
    """Sizes of the model."""
    compute_ms: float = 5.0
    """How long a worker computes in a step."""

    least = {"compute_ms": 0}


def periods(results: list[Steps], roles: list[str], length: int = 1) -> np.ndarray:
    """Return how long a step took in each period of `length` steps but the first, on average over the workers."""
    ends = [result.ends for result, role in zip(results, roles, strict=True) if role == "worker"]
    least = min(map(len, ends)) // length * length  # backup workers may skip steps
    return np.diff([times[length - 1 : least : length] for times in ends], axis=1).mean(axis=0) / length


def measure(settings: Settings) -> Iterator[Row]:
    """Yield one row per strategy, number of ranks, size and bandwidth."""
    for kind in STRATEGIES.values():
        for N in settings.ranks:
            least, most = kind.traits.ranks
            if kind().cost().path and not kind().cost().code and least <= N <= (most or N):
                yield from measure_strategy(settings, kind(), N)


def measure_strategy(settings: Settings, strategy: Strategy, N: int) -> Iterator[Row]:
    """Yield the rows of a strategy with N ranks."""
    options, length = resolve(Options(strategy=strategy, n_gpus=N, device="cpu")), period(strategy)
    n_steps = max(2 * settings.repeats, 3 * length)
    for parameters in settings.parameters:
        nbytes = parameters * torch.float32.itemsize
        job = StepsJob(options, Sizes(parameters), 1, n_steps, {"forward": settings.compute_ms / 1e3})

        def real(link: Link | None, job: StepsJob = job) -> np.ndarray:
            results = launch(take_steps, N, job, roles=options.roles, on_report=lambda *_: None, link=link)
            return periods(results, options.roles, length)[-settings.repeats :]

        machine = float(np.median(real(None)))
        for mbit in settings.mbit:
            bandwidth = mbit * 1e6 / 8
            network = OneSwitch(N, bandwidth, LATENCY, sharing=IN_ORDER)
            time = VirtualTime(network, lambda rank, phase, part: 0.0, compute=False)
            same = dataclasses.replace(job, phases={"forward": machine})
            simulated = time.launch(take_steps, N, same, device="meta", roles=options.roles, on_report=lambda *_: None)
            virtual = float(np.mean(periods(simulated, options.roles, length)[-settings.repeats :]))
            predicted = predict(strategy, N, nbytes, machine, bandwidth, LATENCY, sharing=IN_ORDER)
            assert predicted is not None
            measured = real(Link(bandwidth, LATENCY))
            middle = float(np.median(measured))
            yield {
                "strategy": strategy.name, "ranks": N, "mb": nbytes / 1e6, "mbit": mbit,
                "predicted_ms": predicted * 1e3, "simulated_ms": virtual * 1e3, **figures(measured_ms=measured * 1e3),
                "machine_ms": machine * 1e3, "wall": "yes" if predicted - machine >= 4 * machine else "no",
                "error": f"{100 * (virtual / middle - 1):+.1f} %",
                "predicted_error": f"{100 * (predicted / middle - 1):+.1f} %",
            }  # fmt: skip
