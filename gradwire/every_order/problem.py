"""The model that ranks train in every order: ten numbers, and one mark for each sample.

The gradient of sample i is x - c_i in the ten numbers, so that results depend on the order, and 1 in mark i, so that a
mark shows how often a gradient was used, and with what weight. `train.py` runs the same, with 6 samples, by
`--dataset gradwire.every_order.problem:of_6 --model gradwire.every_order.problem:network --task
gradwire.every_order.problem:loss`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent
from torch import nn

N_NUMBERS = 10


def samples(n: int) -> torch.Tensor:
    """Return n samples [n, N_NUMBERS + n]: each is c_i, and the negative unit vector i."""
    c = torch.randn(n, N_NUMBERS, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return torch.cat([c, -torch.eye(n, dtype=torch.float64)], 1)


class Part(nn.Module):
    """A part [m] of the numbers and marks; `halves` is 1/2 for a number, 0 for a mark."""

    def __init__(self, x: torch.Tensor, halves: torch.Tensor) -> None:
        super().__init__()
        self.x, self.halves = nn.Parameter(x.clone()), halves

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return for each row 1/2 |x|^2 - c_i x, of the numbers, + mark i."""
        return (self.x * (self.halves * self.x - rows)).sum(1)


class Numbers(nn.Module):
    """A model that is a vector, [N_NUMBERS + n], in `blocks` blocks."""

    def __init__(self, n: int, n_blocks: int = 1) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(n)
        x = torch.randn(N_NUMBERS + n, generator=draw, dtype=torch.float64)
        halves = torch.tensor([0.5] * N_NUMBERS + [0.0] * n, dtype=torch.float64)
        both = zip(x.tensor_split(n_blocks), halves.tensor_split(n_blocks), strict=True)
        self.blocks = nn.Sequential(*(Part(*parts) for parts in both))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of the results of the blocks."""
        cut = rows.tensor_split(len(self.blocks), 1)
        return torch.stack([block(part) for block, part in zip(self.blocks, cut, strict=True)]).sum(0)


def loss(model: nn.Module, rows: torch.Tensor, _: Any) -> torch.Tensor:
    """Return the mean loss of some samples."""
    mean: torch.Tensor = model(rows).mean()
    return mean


def network(input_shape: tuple[int, ...], _: int) -> Numbers:
    """Return the model for samples of this shape: `--model`."""
    return Numbers(input_shape[0] - N_NUMBERS)


def blocks(input_shape: tuple[int, ...], _: int) -> Numbers:
    """Return it in two blocks."""
    return Numbers(input_shape[0] - N_NUMBERS, 2)


def data(n: int) -> tuple[torch.Tensor, ...]:
    """Return n samples, with targets that are not used, to train and to evaluate on: `--dataset`."""
    rows = samples(n)
    return rows, torch.zeros(n), rows, torch.zeros(n)


class LoadsAndStores(torch.optim.SGD):
    """SGD of one shared vector whose updates are a load and a store: other ranks may write it in between."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """See torch."""
        (group,) = self.param_groups
        (x,) = group["params"]
        rank: Any = getcurrent().rank
        run, loaded, new = rank.run, rank.run.stores, x - group["lr"] * x.grad
        if rank.is_shared(x):
            run.accesses += 1
            rank.access("stores x")
            rank.recorder.stored = {"version_read": loaded, "version_applied": run.stores}
            run.stores += 1
        x.copy_(new)


def __getattr__(name: str) -> Callable[[], Any]:
    if name.startswith("of_") and name[3:].isdigit():
        return partial(data, int(name[3:]))
    raise AttributeError(name)
