"""All-gather in which every rank sends its chunk to all, begun before its result is needed."""

from collections.abc import Callable, Sequence

import torch

from gradwire.core.transports.base import Transport, Work
from strategies.all_reduce.hidden_communication import HiddenCommunication


class EarlyGather:
    """The all-gathers of one rank, by name; `hidden` measures what it computed meanwhile."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._begun: dict[str, float] = {}  # when those under way began
        self._lent: list[Work] = []  # after which what was sent may be changed
        self.hidden = HiddenCommunication(transport)

    def begin(self, name: str, chunk: torch.Tensor, n: int) -> None:
        """Send this rank's chunk, and n beside it, to all, beginning with the right neighbour; once until `end`."""
        if name in self._begun:
            return
        N, r = self._transport.world_size, self._transport.rank
        self._begun[name] = self._transport.now()
        for i in range(1, N):
            self._lent.append(self._transport.isend(chunk, (r + i) % N, f"gather {name}", n=n))

    def end(self, name: str, chunks: Sequence[torch.Tensor], own: torch.Tensor, compare: Callable[[int], None]) -> None:
        """Put all chunks, rank k's being number (k + 1) mod N, into `chunks`; call `compare` with each n that comes."""
        N, r = self._transport.world_size, self._transport.rank
        chunks[(r + 1) % N].copy_(own)
        with self.hidden.waiting(self._begun.pop(name)):
            for k in self._transport.peers:
                message = self._transport.recv(k, f"gather {name}")
                compare(message.n)
                message.copy_to(chunks[(k + 1) % N])

    def wait(self) -> None:
        """Return when the chunks that were sent may be changed."""
        for work in self._lent:
            work.wait()
        self._lent.clear()
