"""What the loops with a WorkerOptimizer share: a model and samples, and a loop that is right."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from common import dataset
from common import net as net  # of the loops
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

from gradwire import STRATEGIES, WorkerOptimizer

SGD = partial(torch.optim.SGD, lr=0.1)


def begin(transport, name: str, model: torch.nn.Module, optimizer=SGD, **more) -> tuple[WorkerOptimizer, int, int]:
    """Return the optimizer, the number of this worker, and how many there are."""
    strategy = STRATEGIES[name](**more)
    workers = [i for i, role in enumerate(strategy.roles(transport.world_size)) if role == "worker"]
    made = WorkerOptimizer(model, transport, strategy, optimizer)
    return made, 0 if made.is_server else workers.index(transport.rank), len(workers)


def batches(worker: int, n: int, epochs: int = 2, size: int = 5) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    sampler = DistributedSampler(dataset(), n, worker)
    loader = DataLoader(dataset(), size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield from loader


def train(
    optimizer: WorkerOptimizer,
    model: Callable[[torch.Tensor], torch.Tensor],
    given: Iterator[tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable = F.cross_entropy,
    change: Callable[[torch.Tensor], None] = lambda loss: None,
    after: Callable[[torch.Tensor], None] = lambda loss: None,
) -> float:
    """Train; `change` is called before each step with the loss, and `after` after it."""
    if optimizer.is_server:
        optimizer.serve()
        return 0.0
    for x, y in given:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        change(loss)
        optimizer.step(len(x))
        after(loss)
    optimizer.finish()
    return loss.item()
