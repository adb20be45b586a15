"""A rank's process as its launcher holds it: waited for and ended by itself, not by way of the fork server."""

import os
import select
import signal
from contextlib import suppress
from multiprocessing.process import BaseProcess

from launchers.fork_server import death_of_fork_server


class Child:
    """A process that has been started.

    Held by its pidfd where the system has them (Linux): a number of a process may come to mean another one. Elsewhere
    it is a child of this process, and multiprocessing waits for it.
    """

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # an old kernel, or a process that has ended and been reaped already
                self._pidfd = os.pidfd_open(self.pid)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most so many seconds; return whether it has ended."""
        if self._pidfd is None:
            self._process.join(seconds)
            return self._process.exitcode is not None
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(1000 * seconds))

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._pidfd is None:
            self._process.kill()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def is_reaped(self, seconds: float) -> bool:
        """Return whether its parent says within so many seconds how it ended."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def how_it_ended(self, seconds: float) -> str:
        """Return how it ended, as its parent says within so many seconds."""
        if not self.is_reaped(seconds):
            return "ended; how is not known, since the fork server, its parent, does not answer; stopped?"
        code = self._process.exitcode
        assert code is not None
        if code == 255 and (how := death_of_fork_server()):  # multiprocessing's code if the exit code is unknown
            return f"ended with the fork server, its parent, which {how}; out of memory?"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code} before its work was done"

    def close(self) -> None:
        """Give the pidfd back."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
