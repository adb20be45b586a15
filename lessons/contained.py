"""Calls in processes of their own, which are ended with all that they have started: for code that nobody has read.

Each is forked from this process, which has loaded torch. It adopts what its descendants leave behind, detached from
their group and session, so whatever was started is below it, is counted, and is killed. On Linux only.
"""

import ctypes
import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path

from launchers.environment import die_with_parent
from records.interrupts import INTERRUPTS, interrupts_wait

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_MEMORY = (("status", "VmRSS:"), ("smaps_rollup", "Pss:"))
_GRACE_S = 10.0  # for a call to end by itself, once all below it was killed


@dataclass(frozen=True)
class Limits:
    """What a call and all that it starts may use together."""

    seconds: float
    megabytes: float
    processes: int


class Contained:
    """A call under way. Its working folder, where its temporary files are too, is removed when it has ended."""

    def __init__(self, call: Callable[[], bytes], limits: Limits) -> None:
        self.exceeded = ""  # which limit
        self._limits, self._begun = limits, time.monotonic()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open to the end
        self._folder = tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
        with interrupts_wait():
            self.pid = os.fork()
            if not self.pid:
                self._be(call)

    def _be(self, call: Callable[[], bytes]) -> None:
        try:
            os.setsid()
            die_with_parent()
            adopt_orphans()
            for number in INTERRUPTS:
                signal.signal(number, signal.SIG_DFL)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            os.chdir(self._folder.name)
            os.environ["TMPDIR"] = tempfile.tempdir = self._folder.name
            util.spawnv_passfds = _fork  # type: ignore[assignment]
            self._file.write(call())
            self._file.flush()
            end_below(os.getpid())
        finally:
            os._exit(0)

    def watch(self) -> bool:
        """Kill what it has started if it exceeds a limit; return whether it has ended."""
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            self._folder.cleanup()
            return True
        seconds = time.monotonic() - self._begun
        if self.exceeded:
            if seconds > _GRACE_S:
                os.kill(self.pid, signal.SIGKILL)
        elif reason := self._exceeds(seconds):
            self.exceed(reason)
        if self.exceeded:
            end_below(self.pid)
        return False

    def _exceeds(self, seconds: float) -> str:
        family = [self.pid, *below(self.pid)]
        if seconds > self._limits.seconds:
            return f"took more than {self._limits.seconds:g} s"
        if len(family) > self._limits.processes:
            return f"started more than {self._limits.processes} processes"
        # The second, where what processes share is counted once, takes milliseconds for each.
        if all(sum(_megabytes(one, *what) for one in family) > self._limits.megabytes for what in _MEMORY):
            return f"needed more than {self._limits.megabytes:g} MB of memory"
        return ""

    def exceed(self, reason: str) -> None:
        """Have it ended by the next `watch`, for this reason; itself when it has had some seconds to say more."""
        self.exceeded, self._begun = reason, time.monotonic()

    def result(self) -> bytes:
        """Return what the call has returned; nothing if it has not."""
        with self._file as file:
            file.seek(0)
            return file.read()


def _fork(path: str, arguments: Sequence[str], descriptors: Collection[int]) -> int:
    """Run the code that multiprocessing would start a new interpreter for, in a fork: torch is loaded there."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in descriptors:
                with suppress(OSError):
                    os.close(descriptor)
        exec(arguments[-1], {})
    finally:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def below(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Return the processes below this one that have not ended; not the `spare` ones, and none below them."""
    children = dict[int, list[int]]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state not in "ZX" and int(entry.name) not in spare:
                    children.setdefault(int(parent), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def end_below(pid: int, spare: Collection[int] = ()) -> None:
    """Kill all that `below` finds, until nothing is left; gives up after some seconds."""
    give_up = time.monotonic() + _GRACE_S
    while (found := below(pid, spare)) and time.monotonic() < give_up:
        for one in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.005)


def _megabytes(pid: int, file: str, field: str) -> float:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/{file}").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1000
    return 0.0


def end_all(calls: Collection[Contained]) -> None:
    """End these calls, and all that they have started."""
    for call in calls:
        call.exceed("was interrupted")
    while calls := [call for call in calls if not call.watch()]:
        time.sleep(0.02)
    end_below(os.getpid())
