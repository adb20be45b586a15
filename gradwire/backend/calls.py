# mypy: disable-error-code="override"
"""The calls of ranks to a process group: a collective, a message or its receive, and a call that is under way."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast

from gradwire.backend.collectives import Plan
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import PeerLost, Transport

Tensors = Sequence[torch.Tensor]
Part = tuple[Tensors, Tensors]


@dataclass(slots=True, eq=False)
class Collective:
    """The entry of one rank into a collective of a group; its `words` are the same on all ranks."""

    group: str
    ranks: tuple[int, ...]  # of the world, in the order of their numbers in the group
    number: int
    words: str  # such as "all_reduce of (4,) float32, SUM"
    parts: Sequence[Part]  # tensors that this rank gets, and gives
    root: int
    op: Any

    @property
    def kind(self) -> str:
        return self.words.partition(" ")[0]

    def run(self, plans: dict[str, Plan], transport: Transport, at: str) -> None:
        """Do this rank's part, which is called `at` a line. Raises RunFailed if tensors do not fit together."""
        plan = plans[self.kind]
        for outs, ins in self.parts or [([], [])]:
            vectors = [_flat(out) for out in outs]
            given = vectors if ins is outs else [_flat(value) for value in ins]
            try:
                plan(vectors, given, self.root, self.op, transport)
            except (PeerLost, RunFailed):
                raise
            except RuntimeError as error:
                where = f"rank {self.ranks[transport.rank]} is in {self.words} at {at}"
                raise RunFailed(f"mismatch: {where}, with outputs of {sizes_of(outs)}: {error}") from error
            for out, vector in zip(outs, vectors, strict=True):
                if not out.is_contiguous():
                    out.detach().copy_(vector.view(out.shape))


@dataclass(slots=True, eq=False)
class Message:
    """A message, or its receive; `peer` None: from anybody."""

    group: str
    is_sent: bool
    tensor: torch.Tensor
    peer: int | None  # of the world
    tag: int

    @property
    def kind(self) -> str:
        return "send" if self.is_sent else "recv" if self.peer is not None else "recvAnySource"

    @property
    def words(self) -> str:
        """What it is, such as "send of (4,) float32 to rank 1"."""
        peer = "anybody" if self.peer is None else f"rank {self.peer}"
        way = f"send of {sizes_of([self.tensor])} to" if self.is_sent else f"recv of {sizes_of([self.tensor])} from"
        return f"{way} {peer}" + (f", tag {self.tag}" if self.tag else "")


class Call(dist.Work):
    """A call that is under way: see `torch.distributed.Work`. `at` is its line of the script, `source` a sender.

    `tensors` are its result. A profiler sees it as an event of the backend `profiled_as`, with the tensors `given`.
    """

    def __init__(
        self, call: Collective | Message, result: Tensors, ranks: tuple[int, ...], given: Tensors, profiled_as: str
    ) -> None:
        super().__init__()
        self.call, self.tensors, self._ranks = call, list(result), ranks
        self.at, self.source, self.ended = "", -1, False
        self._event: Any = None
        if torch.autograd._profiler_enabled():
            self._event = _RecordFunctionFast(f"{profiled_as}:{call.kind}", list(given), {})
            self._event.__enter__()

    @property
    def message(self) -> Message:
        assert isinstance(self.call, Message)
        return self.call

    def end_event(self) -> None:
        """Let the profiler know that it has ended."""
        if self._event is not None:
            self._event.__exit__(None, None, None)
            self._event = None

    @abstractmethod
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has ended. Raises RuntimeError."""

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def source_rank(self) -> int:
        return self._ranks.index(self.source) if self.source >= 0 else -1

    _source_rank = source_rank


def sizes_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return their shapes and types."""
    return " and ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector: the tensor's own memory where they lie in one piece, else a copy."""
    if tensor.dim() == 1 and not tensor.requires_grad and tensor.is_contiguous():
        return tensor
    return tensor.detach().contiguous().view(-1)
