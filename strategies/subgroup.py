"""Some of the ranks as a world of their own, numbered anew, for a collective that is written for all ranks."""

from collections.abc import Sequence
from typing import Any, cast

from gradwire.core.transports.base import Message, Transport, Work
from gradwire.core.transports.inbox import Tags


class _Among:
    """The methods of `Transport` that a collective calls, on the transport beneath."""

    def __init__(self, transport: Transport, ranks: Sequence[int]) -> None:
        self._transport, self._ranks = transport, ranks
        self.rank, self.world_size = ranks.index(transport.rank), len(ranks)

    def isend(self, value: Any, dst: int, tag: str, n: float = 0) -> Work:
        """Send as `Transport.isend` does; `dst` is a rank of the subgroup."""
        return self._transport.isend(value, self._named(dst), tag, n=n)

    def recv(self, src: int, tag: Tags) -> Message:
        """Receive as `Transport.recv` does; `src` is a rank of the subgroup."""
        return self._transport.recv(self._named(src), tag)

    def _named(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"there is no rank {rank} among {self.world_size}")
        return self._ranks[rank]


def subgroup(transport: Transport, ranks: Sequence[int]) -> Transport:
    """Return the transport of this rank, one of `ranks`, in which rank i is ranks[i]."""
    return cast(Transport, _Among(transport, ranks))
