"""Waits for the answer before it asks."""

import torch

from transports.base import Transport


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(x - base, 0, "push")
    base.copy_(x)


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    unpushed = x - base
    transport.recv(0, "parameters").copy_to(base)
    transport.isend(None, 0, "fetch")
    torch.add(base, unpushed, out=x)


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    x.add_(pushed)
