"""Lab 5, solved: x - base is what the client has added and not pushed yet, at any time."""

import torch

from gradwire.core.transports.base import Transport

SERVER = 0


def push(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    """Client: send the server what this client has added to x [P] and not pushed yet."""
    transport.isend(x - base, SERVER, "push")
    base.copy_(x)


def fetch(transport: Transport, x: torch.Tensor, base: torch.Tensor) -> None:
    """Client: replace x [P], in place, by the server's x and what this client has not pushed yet."""
    transport.isend(None, SERVER, "fetch")
    unpushed = x - base
    transport.recv(SERVER, "parameters").copy_to(base)
    torch.add(base, unpushed, out=x)


def apply(x: torch.Tensor, pushed: torch.Tensor) -> None:
    """Server: take what a client has pushed into x [P], in place."""
    x.add_(pushed)
