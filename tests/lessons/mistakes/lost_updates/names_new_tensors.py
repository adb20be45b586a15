"""Gives the names x and base to new tensors, which the caller never sees."""

import torch

from transports.base import Transport


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(x - base, 0, "push")
    base.copy_(x)


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(None, 0, "fetch")
    unpushed = x - base
    with transport.recv(0, "parameters") as received:
        base = received.vector.clone()
    x = base + unpushed


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    x.add_(pushed)
