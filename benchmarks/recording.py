"""Recording every phase and message costs less than 2 % of a step of the 5.8M-parameter MLP.

python benchmarks/recording.py

Step time of ring_all_reduce with recorder.enabled True against False, blocks of steps alternating in one world. Next to
what was measured (ratio) stands what it should be (expected_percent): the events of a step times the time of one.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, Settings, alternate, figure, main, ratio, require, slowest, train
from benchmarks.networks import mlp
from records.recorder import Recorder
from strategies import Replica
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from training import launch
from transports.base import Transport
from transports.timing import now
from workloads import models

Network = Callable[[tuple[int, ...], int], nn.Module]
WORKLOADS: dict[str, tuple[tuple[int, ...], Network, int]] = {  # shape of a sample, network, steps in a block
    "mlp": ((1, 28, 28), mlp, 4),
    "digits_mlp": ((1, 8, 8), partial(models.build, "mlp"), 100),
}
N_CLASSES, BATCH_SIZE = 10, 64


@dataclass(frozen=True)
class RecordingSettings(Settings):
    """Options of the recording benchmark."""

    repeats: int = 40
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    n_gpus: int = 2
    """Number of processes."""
    models: tuple[str, ...] = tuple(WORKLOADS)
    """Which networks: mlp, digits_mlp."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(self.n_gpus >= 2, "--n_gpus: must be at least 2")
        require(set(self.models) <= set(WORKLOADS), f"--models: there are {', '.join(WORKLOADS)}")


def on_rank(transport: Transport, model: str, repeats: int) -> tuple[Seconds, float]:
    """Measure one network on one rank; return the seconds of each side's blocks and the events per step."""
    shape, network, steps = WORKLOADS[model]
    torch.manual_seed(0)
    module = network(shape, N_CLASSES)
    strategy = RingAllReduce()
    strategy.start(Replica(module, transport), transport, partial(torch.optim.SGD, lr=1e-3, momentum=0.9))
    x, y = torch.rand(BATCH_SIZE, *shape), torch.randint(N_CLASSES, (BATCH_SIZE,))

    def block(enabled: bool) -> Callable[[], None]:
        def run() -> None:
            transport.recorder.enabled = enabled
            train(strategy, module, lambda: (x, y), steps)

        return run

    block(False)()
    seconds = alternate(transport, {"recorded": block(True), "unrecorded": block(False)}, repeats)
    return seconds, len(transport.recorder.frame()) / (steps * repeats)


def seconds_of_an_event(n: int = 10_000) -> float:
    """Return the seconds that one recorded phase takes, its calls of the clock included."""
    recorder = Recorder()
    t0 = now()
    for _ in range(n):
        with recorder.phase("wait"):
            pass
    return (now() - t0) / n


def measure(settings: RecordingSettings) -> Iterator[Row]:
    """Yield one row per network."""
    for model in settings.models:
        ranks = launch(on_rank, settings.n_gpus, model, settings.repeats)
        _, _, steps = WORKLOADS[model]
        ms = {name: s / steps * 1e3 for name, s in slowest([seconds for seconds, _ in ranks]).items()}
        events = max(events for _, events in ranks)
        event_us = seconds_of_an_event() * 1e6
        yield {
            "model": model,
            "n_gpus": settings.n_gpus,
            **figure("recorded_ms", ms["recorded"]),
            **figure("unrecorded_ms", ms["unrecorded"]),
            **ratio(ms["recorded"], ms["unrecorded"]),
            "events_per_step": events,
            "event_us": event_us,
            "expected_percent": events * event_us / 10 / float(np.median(ms["unrecorded"])),
        }


if __name__ == "__main__":
    sys.exit(main(__doc__, RecordingSettings, measure))
