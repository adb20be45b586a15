"""What labs 15 and 16 are given: a transformer's block, and autograd functions whose passes are given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Change = Callable[[torch.Tensor], torch.Tensor]
Exchange = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]
Expert = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Block:
    """The weights of a block, or of a rank's part: attention's Q, K, V, O [d, d], and MLP's A [d, 4 d] and B [4 d, d].

    A row of x is a token: x Q are the queries. The columns of Q, K, V belong to the heads, one behind the other.
    """

    Q: torch.Tensor
    K: torch.Tensor
    V: torch.Tensor
    O: torch.Tensor  # noqa: E741 - the paper's name
    A: torch.Tensor
    B: torch.Tensor


class _Between(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Change, backward: Change) -> torch.Tensor:
        ctx.change = backward
        return forward(x).view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.change(gradients[0]), None, None


def between(x: torch.Tensor, forward: Change, backward: Change) -> torch.Tensor:
    """Return forward(x); in the backward pass the gradient of x is backward(gradient)."""
    result: torch.Tensor = _Between.apply(x, forward, backward)
    return result


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the attention of `heads` heads, side by side, over the tokens of q, k, v [tokens, columns]."""
    q, k, v = (matrix.view(len(matrix), heads, -1).transpose(0, 1) for matrix in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, exchange: Exchange, give: list[int], take: list[int]
    ) -> torch.Tensor:  # fmt: skip
        ctx.back = exchange, take, give
        return exchange(rows, give, take)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        exchange, give, take = ctx.back
        return exchange(gradients[0].contiguous(), give, take), None, None, None


def across(rows: torch.Tensor, exchange: Exchange, give: list[int], take: list[int]) -> torch.Tensor:
    """Return exchange(rows, give, take); in the backward pass the gradients go back the same way."""
    result: torch.Tensor = _Across.apply(rows, exchange, give, take)
    return result
