# mypy: disable-error-code="override"
"""A call of a rank of a script, to the engine that carries it, which is under way."""

from datetime import timedelta
from functools import partial
from typing import Any

import torch

from gradwire.backend.calls import Call, Collective, Message, Tensors
from gradwire.torch_scripts.threads import RankThread


class Pending(Call):
    """A call of a rank that is under way; a wait for it lasts at most `limit`. A profiler sees it as gloo's."""

    def __init__(
        self, thread: RankThread, call: Collective | Message, result: Tensors, ranks: tuple[int, ...],
        limit: timedelta | None, given: Tensors,
    ) -> None:  # fmt: skip
        super().__init__(call, result, ranks, given, "gloo")
        self.thread, self.rank, self._limit = thread, thread.rank, limit
        self.ended_at = 0.0
        self._future: torch.futures.Future[Any] | None = None

    def fits(self, receive: "Pending") -> bool:
        sent, wanted = self.message, receive.message
        same = (sent.group, sent.peer, sent.tag) == (wanted.group, receive.rank, wanted.tag)
        return same and wanted.peer in (None, self.rank)

    def end(self, at: float = 0.0) -> None:
        """Note that it has ended, at that time of its rank's clock."""
        self.ended, self.ended_at = True, at
        self.end_event()

    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout or self._limit
        late = self.thread.ask(partial(self.thread.engine.wait, self, limit.total_seconds() if limit else None))
        if late:
            raise RuntimeError(f"virtual process group: {late}")
        self.thread.watcher.waited(self)
        if self._future is not None and not self._future.done():
            self._future.set_result(self.tensors)
        return True

    def is_completed(self) -> bool:
        found: bool = self.thread.ask(partial(self.thread.engine.look, self))
        if found:
            self.thread.watcher.waited(self)
        return found

    def is_success(self) -> bool:
        return self.ended

    def exception(self) -> None:
        pass

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
