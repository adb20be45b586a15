"""What strategies need of codecs, by which gradients may travel as codes; the codecs are `gradwire.compression`."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from gradwire.core.strategy.replica import Replica
from gradwire.core.transports.base import Message, Transport

DENSE, GATHERED, LINEAR = "dense", "gathered", "linear"
KINDS = {DENSE: "codes can be added", GATHERED: "codes go to everyone", LINEAR: "has all-reduces of its own"}

AllReduce = Callable[[torch.Tensor, int], int]
"""Replaces a vector [m] on every rank by the sum over all ranks, and returns the sum of all the numbers beside it."""


class Coder(Protocol):
    """How the gradients of a run travel as codes, on one rank.

    `dense`: the bytes that the rank would send in place of a code; `missing`: the tensors that are missing in what was
    coded last, or in the last mean.
    """

    dense: float
    missing: set[int]

    @property
    def codec(self) -> Any:
        """The codec by which this rank sends: a `gradwire.compression.Codec`."""

    def encode(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the code of `vector` [n], to be sent: it is good until the next."""

    def decode(self, message: Message) -> Message:
        """Replace the code that a message carries by its vector [n]."""

    def tell(self, receivers: Iterable[int]) -> None:
        """Send the numbers of the tensors without a gradient, if they are not the same as in the last code."""

    def learn(self, message: Message) -> None:
        """Take the numbers of missing tensors from a sender."""

    def forget(self, k: int) -> None:
        """Begin anew with sender k, which was started again."""

    def mean(self, vector: torch.Tensor, n: int, all_reduce: AllReduce) -> int:
        """Replace `vector` on every rank by the mean of all ranks' decoded codes; return the sum of their `n`."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each codec."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""


class CodecFactory(Protocol):
    """Makes the coders of the gradients of a run."""

    def begin(self, replica: Replica, transport: Transport, dense: float, sends: bool) -> Coder:
        """Begin on one rank; `dense`: the bytes that it would send in place of a code; `sends`: whether it does."""
