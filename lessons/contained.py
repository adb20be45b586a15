"""Calls in processes of their own, which are ended with all that they have started: for code that is not trusted.

Each is forked from this process, which has loaded torch. It adopts what its descendants leave behind, detached from
their group and session, so whatever was started is below it, is counted, and is killed. On Linux only.
"""

import ctypes
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import util
from pathlib import Path

from gradwire.core.launchers.environment import die_with_parent
from gradwire.core.records.interrupts import INTERRUPTS, interrupts_wait

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_MEMORY = (("status", "VmRSS"), ("smaps_rollup", "Pss"))  # the second counts shared memory once, and takes longer
_GIVE_UP_S = 10.0


class Contained:
    """A call under way, and what it and all that it starts may use together; a thread counts as a process.

    Its working folder, where its temporary files are too, is removed with this object. `before_start` is called in each
    process that is to start others for it.
    """

    def __init__(
        self,
        call: Callable[[], bytes],
        before_start: Callable[[], None],
        seconds: float,
        megabytes: float,
        processes: int,
    ) -> None:
        self.exceeded = ""  # which limit
        self.seconds = 0.0  # since it began, when `has_ended` last looked
        self._before_start = before_start
        self._seconds, self._megabytes, self._processes = seconds, megabytes, processes
        self._begun = time.monotonic()
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
            util.spawnv_passfds = partial(_fork, self._before_start)
            self._file.write(call())
            self._file.flush()
        finally:
            os._exit(0)

    def has_ended(self) -> bool:
        """Whether it has ended; end it if it exceeds a limit. What it has started may be left."""
        self.seconds = time.monotonic() - self._begun
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            return True
        family = [self.pid, *below(self.pid)]
        if self.seconds > self._seconds:
            self.exceeded = f"took more than {self._seconds:g} s"
        elif sum(map(_threads, family)) > self._processes:
            self.exceeded = f"started more than {self._processes} processes and threads"
        elif all(sum(_megabytes(member, *what) for member in family) > self._megabytes for what in _MEMORY):
            self.exceeded = f"needed more than {self._megabytes:g} MB of memory"
        if self.exceeded:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return bool(self.exceeded)

    def result(self) -> bytes:
        """Return what the call has returned; nothing if it has not."""
        with self._file as file:
            file.seek(0)
            return file.read()


def _fork(before: Callable[[], None], path: str, arguments: Sequence[str], descriptors: Collection[int]) -> int:
    """Run the code that multiprocessing would start a new interpreter for, in a fork: torch is loaded there."""
    copies = {descriptor: os.dup(descriptor) for descriptor in descriptors}
    if pid := os.fork():
        for copy in copies.values():
            os.close(copy)
        return pid
    try:
        os.setsid()
        for descriptor, copy in copies.items():
            os.dup2(copy, descriptor)  # from Python 3.14 on, multiprocessing closes one of them in a fork
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in descriptors:
                with suppress(OSError):
                    os.close(descriptor)
        before()
        exec(arguments[list(arguments).index("-c") + 1], {})
    finally:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def below(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Return the processes below this one that have not ended; not the `spare` ones, and none below them."""
    children = dict[int, list[int]]()
    for process, state, parent in _processes():
        if state not in "ZX" and process not in spare:
            children.setdefault(parent, []).append(process)
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found[1:]


def end_below(spare: Collection[int] = ()) -> None:
    """Kill all that `below` finds of this process, until nothing is left; gives up after some seconds.

    It kills a whole group at once: a process that forks without end is faster than killing its children one by one.
    """
    give_up = time.monotonic() + _GIVE_UP_S
    while (found := below(os.getpid(), spare)) and time.monotonic() < give_up:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                group = os.getpgid(process)
                os.kill(process, signal.SIGKILL)
                if group != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
        time.sleep(0.005)
    for process, state, parent in _processes():
        if state == "Z" and parent == os.getpid() and process not in spare:
            os.waitpid(process, os.WNOHANG)


def _processes() -> Iterator[tuple[int, str, int]]:
    """Yield each process of the machine, its state, and its parent."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            yield int(entry.name), state, int(parent)


def _threads(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


def _megabytes(pid: int, file: str, field: str) -> float:
    with suppress(OSError):
        found = re.search(rf"^{field}:\s*(\d+)", Path(f"/proc/{pid}/{file}").read_text(errors="replace"), re.MULTILINE)
        return int(found[1]) / 1000 if found else 0.0
    return 0.0
