"""A transport between the threads of one process, and its engine: an example for your own."""

import pickle
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import CLOSED, Transport
from gradwire.core.transports.messages import Delivered, Message, Work, as_vector
from tests.engines import LIMIT, Engine

Inbox = queue.SimpleQueue[tuple[Message, float]]


class Threads(Transport):
    def __init__(self, rank: int, inboxes: list[Inbox], recorder: Recorder) -> None:
        super().__init__(rank, len(inboxes), torch.device("cpu"), LIMIT, recorder)
        self.inboxes = inboxes

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(numel, dtype=dtype)

    def shared_vector(self, name: str, numel: int, dtype: torch.dtype, ranks: Iterable[int]) -> torch.Tensor:
        raise RuntimeError(f"shared vector {name!r}: threads have no shared memory here")

    def _send(self, value: Any, dst: int, tag: str, n: float = 0, sent: float = 0.0) -> tuple[Work, int]:
        if isinstance(value, torch.Tensor):
            tensor, obj = as_vector(value).clone(), None
            nbytes = tensor.nbytes
        else:
            tensor, obj = None, b"" if value is None else pickle.dumps(value)
            nbytes = len(obj)
        self.inboxes[dst].put((Message(self.rank, tag, tensor, obj, nbytes, n), sent))
        return Delivered(), nbytes

    def _progress(self, src: int, seconds: float) -> None:
        inbox = self.inboxes[self.rank]
        try:
            self._take_in(*inbox.get(block=seconds > 0, timeout=seconds))
            while True:  # all that has come
                self._take_in(*inbox.get(block=False))
        except queue.Empty:
            pass

    def _take_in(self, message: Message, sent: float) -> None:
        if message.tag == "(goodbye)":
            self._lose(message.src, CLOSED, died=False)
        else:
            self.inbox.put(message, sent)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for peer in self.peers:
                self.inboxes[peer].put((Message(self.rank, "(goodbye)", None, b"", 0), 0.0))


class ThreadEngine(Engine):
    def run(self, check: Callable[..., Any], world_size: int, *args: Any, record: bool = False) -> list[Any]:
        inboxes: list[Inbox] = [queue.SimpleQueue() for _ in range(world_size)]

        def rank(number: int) -> Any:
            with Threads(number, inboxes, Recorder(number, record)) as transport:
                return check(transport, *args)

        with ThreadPoolExecutor(world_size) as threads:
            return list(threads.map(rank, range(world_size)))
