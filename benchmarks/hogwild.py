"""hogwild makes at least as many updates a second as torch's own Hogwild: a module in shared memory, and an optimizer
in each process.

python benchmarks/hogwild.py

The other side is what torch's example of Hogwild does: module.share_memory(), handed to every process. Both sides live
in the same processes, with the same threads, batches and numbers of steps; blocks of steps alternate. updates_per_s are
of all processes together, until the slowest has ended. Before any is timed, the two must have come to the same
parameters, all processes taking turns.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import networks
from benchmarks.common import Row, Seconds, Settings, alternate, figure, main, ratio, require, slowest, train
from benchmarks.training import INPUT_SHAPE, N_CLASSES, new_batch
from strategies import Replica
from strategies.hogwild import Hogwild
from training import launch
from transports.base import Transport

MODELS = {"small_cnn": networks.small_cnn, "cnn": networks.cnn, "mlp": networks.mlp}


@dataclass(frozen=True)
class HogwildSettings(Settings):
    """Options of the benchmark of Hogwild."""

    repeats: int = 15
    """How often the compared sides take turns; figures are medians over the repeats, with quartiles."""
    processes: tuple[int, ...] = (1, 2, 4)
    """Numbers of processes."""
    models: tuple[str, ...] = tuple(MODELS)
    """Which networks: small_cnn, cnn, mlp."""
    steps: int = 10
    """Steps of each process in a block."""
    batch_size: int = 64
    """Samples of a step."""

    def check(self) -> None:
        """See Settings."""
        super().check()
        require(min(self.processes, default=0) >= 1, "--processes: must be numbers of at least 1")
        require(self.steps >= 1, "--steps: must be at least 1")
        require(self.batch_size >= 1, "--batch_size: must be at least 1")
        require(set(self.models) <= set(MODELS), f"--models: there are {', '.join(MODELS)}")


def new_optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer that every process has."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.5)


def new_network(model: str) -> nn.Module:
    """Return the network, its parameters the same in every process."""
    torch.manual_seed(0)
    return MODELS[model](INPUT_SHAPE, N_CLASSES)


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


def train_shared(
    module: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, torch.Tensor], steps: int
) -> None:
    """Take `steps` steps as torch's example does."""
    x, y = batch
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.item()
        loss.backward()
        optimizer.step()


def on_rank(transport: Transport, model: str, settings: HogwildSettings) -> Seconds:
    """Return the seconds of each side's blocks on one rank."""
    batch = new_batch(transport.rank, settings.batch_size)
    network, strategy = new_network(model), Hogwild()
    strategy.start(Replica(network, transport), transport, new_optimizer)
    shared = share_module(transport, model)
    optimizer = new_optimizer(list(shared.parameters()))

    ours: Callable[[int], None] = partial(train, strategy, network, lambda: batch)
    theirs: Callable[[int], None] = partial(train_shared, shared, optimizer, batch)
    for rank in [*range(transport.world_size)] * 2:
        if rank == transport.rank:
            ours(1)
            theirs(1)
        transport.barrier()
    torch.testing.assert_close(strategy.model(), parameters_to_vector(shared.parameters()).detach())
    transport.barrier()
    blocks = {"ours": partial(ours, settings.steps), "torch": partial(theirs, settings.steps)}
    return alternate(transport, blocks, settings.repeats)


def measure(settings: HogwildSettings) -> Iterator[Row]:
    """Yield one row per model and number of processes."""
    for model in settings.models:
        for n in settings.processes:
            seconds = slowest(launch(on_rank, n, model, settings))
            ours, torchs = (n * settings.steps / seconds[side] for side in ("ours", "torch"))
            yield {
                "model": model,
                "processes": n,
                **figure("updates_per_s", ours),
                **figure("torch_updates_per_s", torchs),
                **ratio(ours, torchs),
            }


if __name__ == "__main__":
    sys.exit(main(__doc__, HogwildSettings, measure))
