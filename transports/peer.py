"""One peer as a rank with shared memory sees it: the pipes from and to it, and who uses what of the other's memory."""

import os
import select
from collections import deque
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

import torch

from transports.pipes import buffer_frame, release_frame, shared_frame

_READ_AT_MOST = 1 << 20
_SLICES = 1000  # that are kept for a peer


class Peer:
    """The two pipes of one life of a peer. If it is started again, its next life is another Peer.

    `open` until it has died or closed; nothing is written to it afterwards. `poller` watches what comes from it and
    the launcher's notices (`deaths`).
    """

    def __init__(self, rank: int, inbound: Connection, outbound: Connection, deaths: int) -> None:
        self.rank = rank
        self.open = True
        self.source, self.sink = inbound.fileno(), outbound.fileno()
        self.poller = select.poll()
        self.poller.register(deaths, select.POLLIN)
        self.poller.register(self.source, select.POLLIN)
        for fd in (self.source, self.sink):
            os.set_blocking(fd, False)
        self.partial = bytearray()  # read, but not yet a whole frame
        self.backlog: deque[memoryview] = deque()  # what the pipe has not taken yet
        self.handed: set[int] = set()  # the numbers of this rank's buffers that were handed to it
        self.tickets = 0  # of the messages that it was to read in this rank's memory
        self.unreleased: set[int] = set()  # those of them that it may still read
        self.untaken = 0  # handles of this rank's memory that it has not unpickled yet, for which this rank must live
        self.buffers: dict[int, torch.Tensor] = {}  # its memory, by its numbers
        self._slices: dict[tuple[int, int, int], torch.Tensor] = {}  # of its memory, since the same ones come each step
        self._connections = (inbound, outbound)

    def hand_out(self, number: int, buffer: torch.Tensor) -> None:
        """Hand this rank's buffer with this number to the peer."""
        self.handed.add(number)
        self.untaken += 1
        self.write(buffer_frame(number, handle_of(buffer)))

    def hand_out_shared(self, tag: str, vector: torch.Tensor) -> None:
        """Hand a shared vector to the peer."""
        self.untaken += 1
        self.write(shared_frame(tag, handle_of(vector)))

    def release(self, ticket: int) -> None:
        """Tell the peer that its message with this ticket is no longer read."""
        self.write(release_frame(ticket))

    def slice_of(self, buffer: int, offset: int, numel: int) -> torch.Tensor:
        """Return `numel` elements from `offset` of the peer's memory with this number."""
        key = (buffer, offset, numel)
        found = self._slices.get(key)
        if found is None:
            if len(self._slices) >= _SLICES:
                self._slices.clear()
            found = self._slices[key] = self.buffers[buffer][offset : offset + numel]
        return found

    def write(self, data: bytes) -> None:
        """Send a frame: what the pipe does not take at once waits for `flush`."""
        if not self.open:
            return
        if self.backlog:
            self.backlog.append(memoryview(data))
            self.flush()
            return
        try:
            written = os.write(self.sink, data)
        except BlockingIOError:
            written = 0
        except BrokenPipeError:
            # The reader is gone; its own pipe gives the reason, after its last messages.
            return
        if written < len(data):
            self.backlog.append(memoryview(data)[written:])

    def flush(self) -> None:
        """Write as much of the backlog as the pipe takes."""
        backlog = self.backlog
        try:
            while backlog:
                written = os.write(self.sink, backlog[0])
                if written < len(backlog[0]):
                    backlog[0] = backlog[0][written:]
                    return
                backlog.popleft()
        except BlockingIOError:
            return
        except BrokenPipeError:
            backlog.clear()

    def read(self) -> bytes | None:
        """Return what is in the pipe: None if nothing, b"" if it has ended."""
        try:
            return os.read(self.source, _READ_AT_MOST)
        except BlockingIOError:
            return None

    def lose(self, died: bool) -> None:
        """Expect nothing more of the peer. One that has closed may still read what was written to it so far."""
        if self.open:
            self.poller.unregister(self.source)
        self.open = False
        self.unreleased.clear()
        if died:
            self.backlog.clear()

    def close(self) -> None:
        """Give the pipes back."""
        self.lose(died=True)
        for connection in self._connections:
            connection.close()


def handle_of(vector: torch.Tensor) -> bytes:
    """Return a pickled handle of the vector's memory (a file descriptor, or CUDA IPC), not its content."""
    return bytes(ForkingPickler.dumps(vector))
