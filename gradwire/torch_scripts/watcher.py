"""What may watch a script while it runs in virtual time. Nothing that it does takes virtual time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.torch_scripts.calls import Pending
    from gradwire.torch_scripts.threads import RankThread


class Watcher:
    """Is told of the calls of all ranks; this one does nothing with it."""

    @contextmanager
    def watch(self) -> Iterator[None]:
        """In the block, the script runs on all ranks."""
        yield

    @contextmanager
    def watch_rank(self, rank: "RankThread") -> Iterator[None]:
        """In the block, the script runs on this rank, in whose thread this is called."""
        yield

    def entered(self, pending: "Pending") -> None:
        """Called in the thread of a rank before its collective or message begins."""

    def waited(self, pending: "Pending") -> None:
        """Called in the thread of a rank when it knows that its call has ended."""
