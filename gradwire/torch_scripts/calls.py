# mypy: disable-error-code="override"
"""The calls of ranks: a collective, a message or its receive, and a call that is under way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _RecordFunctionFast

from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts.collectives import Plan
from gradwire.torch_scripts.threads import RankThread
from gradwire.virtual_time.transport import Simulated

Tensors = Sequence[torch.Tensor]
Part = tuple[Tensors, Tensors]


@dataclass(frozen=True)
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

    def run(self, plans: dict[str, Plan], transport: Simulated, at: str) -> None:
        """Do this rank's part, which is called `at` a line. Raises RunFailed if tensors do not fit together."""
        plan = plans[self.kind]
        for outs, ins in self.parts or [([], [])]:
            vectors = [_flat(out) for out in outs]
            try:
                plan(vectors, [_flat(value) for value in ins], self.root, self.op, transport)
            except RuntimeError as error:
                where = f"rank {self.ranks[transport.rank]} is in {self.words} at {at}"
                raise RunFailed(f"mismatch: {where}, with outputs of {sizes_of(outs)}: {error}") from error
            for out, vector in zip(outs, vectors, strict=True):
                if not out.is_contiguous():
                    out.detach().copy_(vector.view(out.shape))


@dataclass(frozen=True)
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


class Pending(dist.Work):
    """A call that is under way: see `torch.distributed.Work`. `at` is its line of the script, `source` a sender.

    `tensors` are its result. `limit` is how long a wait for it lasts at most. A profiler sees
    it, with the tensors `given`, as gloo's.
    """

    def __init__(
        self, thread: RankThread, call: Collective | Message, result: Tensors, ranks: tuple[int, ...],
        limit: timedelta | None, given: Tensors,
    ) -> None:  # fmt: skip
        super().__init__()
        self.thread, self.call, self.tensors, self._ranks = thread, call, list(result), ranks
        self.rank, self.at = thread.rank, ""
        self.source, self._limit = -1, limit
        self.ended, self.ended_at = False, 0.0
        self._future: torch.futures.Future[Any] | None = None
        self._event: Any = None
        if torch.autograd._profiler_enabled():
            self._event = _RecordFunctionFast(f"gloo:{call.kind}", list(given), {})
            self._event.__enter__()

    @property
    def message(self) -> Message:
        assert isinstance(self.call, Message)
        return self.call

    def fits(self, receive: "Pending") -> bool:
        sent, wanted = self.message, receive.message
        same = (sent.group, sent.peer, sent.tag) == (wanted.group, receive.rank, wanted.tag)
        return same and wanted.peer in (None, self.rank)

    def end(self, at: float = 0.0) -> None:
        """Note that it has ended, at that time of its rank's clock."""
        self.ended, self.ended_at = True, at
        if self._event is not None:
            self._event.__exit__(None, None, None)
            self._event = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout or self._limit
        late = self.thread.ask(partial(self.thread.engine.wait, self, limit.total_seconds() if limit else None))
        if late:
            raise RuntimeError(f"virtual process group: {late}")
        self.thread.watcher.waited(self)
        if self._future is not None and not self._future.done():
            self._future.set_result(self.tensors)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        found: bool = self.thread.ask(partial(self.thread.engine.look, self))
        if found:
            self.thread.watcher.waited(self)
        return found

    def is_success(self) -> bool:
        return self.ended

    def exception(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def source_rank(self) -> int:
        return self._ranks.index(self.source) if self.source >= 0 else -1

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        if self._future is None:
            self._future = torch.futures.Future()
            self.thread.futures.append(self)
            if torch._C._current_graph_task_id() != -1:  # a backward pass, at whose end C++ waits for the future
                if torch._C._current_autograd_node() is None:  # that end is now
                    self.thread.settle()
                else:
                    torch.autograd.Variable._execution_engine.queue_callback(self.thread.settle)  # before C++ does
        return self._future


def sizes_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return their shapes and types."""
    return " and ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a vector: the tensor's own memory where they lie in one piece, else a copy."""
    return tensor.detach().contiguous().view(-1)
