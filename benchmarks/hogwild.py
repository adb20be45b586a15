"""hogwild makes as many updates a second as torch's own Hogwild: a module in shared memory, and an optimizer
in each process.

python benchmarks/hogwild.py

The other side is what torch's example of Hogwild does: module.share_memory(), handed to every process. Both sides live
in the same processes, with the same threads, batches and numbers of steps; blocks of steps alternate. updates_per_s are
of all processes together, until the slowest has ended. Before any is timed, the two must have come to the same
parameters, all processes taking turns. The side that is made first is a little slower for its place in memory, so each
is first in half of the repeats.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Row, Seconds, StepSettings, alternate, figures, main, slowest
from benchmarks.networks import Batch, new_batch, new_network, new_optimizer
from strategies import Replica
from strategies.lock_free.hogwild import Hogwild
from training import launch
from transports.base import Transport

SIDES = ("ours", "torch")


@dataclass(frozen=True)
class HogwildSettings(StepSettings):
    """Options of the benchmark of Hogwild."""

    repeats: int = 16
    processes: tuple[int, ...] = (1, 2, 4)
    """Numbers of processes."""
    models: tuple[Literal["small_cnn", "cnn", "mlp"], ...] = ("small_cnn", "cnn", "mlp")
    """Which networks."""
    steps: int = 10


optimizer_of = partial(new_optimizer, momentum=0.5)


def share_module(transport: Transport, model: str) -> nn.Module:
    """Return the module that rank 0 has put into shared memory, as a process that is started with it gets it."""
    if transport.rank != 0:
        with transport.recv(0, "module") as message:
            module: nn.Module = pickle.loads(message.object)
    else:
        module = new_network(model).share_memory()
        for peer in transport.peers:
            transport.isend(bytes(ForkingPickler.dumps(module)), peer, "module")
    transport.barrier()  # a handle needs its sender
    return module


def train_ours(strategy: Hogwild, module: nn.Module, batch: Batch, steps: int) -> None:
    """Take `steps` steps as the training loop does, which records them too."""
    x, y = batch
    for _ in islice(strategy.steps_of_epoch(0, 0), steps):
        loss = F.cross_entropy(module(x), y)
        loss.item()
        loss.backward()
        strategy.step(len(x))
    strategy.transport.owes = ""  # steps are measured, and no end of an epoch


def train_shared(optimizer: torch.optim.Optimizer, module: nn.Module, batch: Batch, steps: int) -> None:
    """Take `steps` steps as torch's example does."""
    x, y = batch
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.item()
        loss.backward()
        optimizer.step()


def on_rank(transport: Transport, model: str, first: str, settings: HogwildSettings) -> Seconds:
    """Return the seconds of each side's blocks on one rank, for half of the repeats; the side `first` is made first."""
    batch = new_batch(transport.rank, settings.batch_size)
    sides: dict[str, Callable[[int], None]] = {}
    x: dict[str, Callable[[], torch.Tensor]] = {}
    for side in sorted(SIDES, key=lambda side: side != first):
        if side == "ours":
            network, strategy = new_network(model), Hogwild()
            strategy.start(Replica(network, transport), transport, optimizer_of)
            sides[side], x[side] = partial(train_ours, strategy, network, batch), strategy.model
        else:
            shared = share_module(transport, model)
            parameters = list(shared.parameters())
            sides[side] = partial(train_shared, optimizer_of(list(parameters)), shared, batch)
            x[side] = partial(parameters_to_vector, parameters)
    for rank in [*range(transport.world_size)] * 2:
        if rank == transport.rank:
            for take_steps in sides.values():
                take_steps(1)
        transport.barrier()
    torch.testing.assert_close(x["ours"](), x["torch"]().detach())
    transport.barrier()
    blocks = {side: partial(take_steps, settings.steps) for side, take_steps in sides.items()}
    return alternate(transport, blocks, (settings.repeats + 1) // 2)


def measure(settings: HogwildSettings) -> Iterator[Row]:
    """Yield one row per model and number of processes."""
    for model in settings.models:
        for n in settings.processes:
            halves = [slowest(launch(on_rank, n, model, first, settings)) for first in SIDES]
            ours, torchs = (n * settings.steps / np.concatenate([half[side] for half in halves]) for side in SIDES)
            row = {"model": model, "processes": n}
            yield row | figures(updates_per_s=ours, torch_updates_per_s=torchs, ratio=ours / torchs)


if __name__ == "__main__":
    sys.exit(main(__doc__, HogwildSettings, measure))
