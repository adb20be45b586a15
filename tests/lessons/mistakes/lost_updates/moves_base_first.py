"""Moves base before it has looked at what was added since."""

import torch

from transports.base import Transport


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    base.copy_(x)
    transport.isend(x - base, 0, "push")


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(None, 0, "fetch")
    unpushed = x - base
    transport.recv(0, "parameters").copy_to(base)
    torch.add(base, unpushed, out=x)


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    x.add_(pushed)
