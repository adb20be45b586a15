"""A message whose receiver reads it in the sender's memory."""

from transports.messages import Work
from transports.peer import Peer
from transports.timing import SLICE_S
from transports.watch import Watching


class InPlace(Work):
    """The receiver reads the sender's memory until it releases the message."""

    def __init__(self, transport: Watching, peer: Peer, ticket: int) -> None:
        self._transport, self._peer, self._ticket = transport, peer, ticket

    @property
    def done(self) -> bool:
        """See Work."""
        if self._ticket in self._peer.unreleased:
            self._transport._progress(self._peer.rank, 0)
        return self._ticket not in self._peer.unreleased

    def wait(self) -> None:
        """See Work."""
        transport, peer = self._transport, self._peer
        if self._ticket not in peer.unreleased:
            return
        t0, deadline = transport.now(), transport._running() + transport.timeout
        while self._ticket in peer.unreleased:
            remaining = deadline - transport._running()
            if remaining <= 0:
                raise transport.inbox.overdue("the release of a message", peer.rank, transport.timeout)
            transport._progress(peer.rank, min(remaining, SLICE_S))
        transport.recorder.add("wait", t0, transport.now(), peer=peer.rank, tag="release")
