"""Lets base take in by a fetch what was not pushed yet."""

import torch

from transports.base import Transport


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(x - base, 0, "push")
    base.copy_(x)


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    transport.isend(None, 0, "fetch")
    unpushed = x - base
    transport.recv(0, "parameters").copy_to(x)
    x.add_(unpushed)
    base.copy_(x)


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    x.add_(pushed)
