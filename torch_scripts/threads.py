"""Ranks as threads of one process, of which one runs at a time.

A thread for each rank, and no coroutine: C++ code that calls back into Python keeps a stack for each thread, so a
script that waits inside a backward pass could not be suspended otherwise. The main thread is the hub. It lets one rank
run until that rank asks for something; what it asks for is done on the hub.
"""

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from records.errors import RunFailed
from torch_scripts.process_state import ProcessState
from transports.timing import cpu_seconds

Request = Callable[[], Any]
_LOOK_S = 20.0  # how often the hub looks whether the rank that runs still computes
_COMPUTES_S = 0.5  # seconds of all threads between two looks, below which it does not


class Killed(BaseException):
    """Raised in a rank whose run has ended."""


class RankThread:
    """The thread of one rank. `at` is the line of the script at which it asked last; `error` is what it raised.

    `answer` and `refusal`: what its last request returned or raised, set by the hub.
    """

    def __init__(self, rank: int, work: Callable[[], object], state: ProcessState, folder: str) -> None:
        self.rank, self._work, self._state, self._folder = rank, work, state, folder
        self.at = "its start"
        self.error: BaseException | None = None
        self.answer: Any = None
        self.refusal: Exception | None = None
        self._request: Request | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"rank {rank}", daemon=True)
        self._is_over = False
        self._computed = 0.0

    # On the hub

    def resume(self) -> Request | None:
        """Let the rank run until it asks for something; return that, or None: it has ended. Raises RunFailed."""
        self._state.install()
        if self._thread.ident is None:
            self._thread.start()
        self._go.release()
        computed = _all_cpu_seconds()
        while not self._back.acquire(timeout=_LOOK_S):
            computed, before = _all_cpu_seconds(), computed
            if computed - before < _COMPUTES_S:
                raise RunFailed(
                    f"rank {self.rank} neither computes nor asks for anything, at {self._blocked_at()}: ranks are "
                    "threads of one process, and it waits for what no other of them can do meanwhile"
                )
        return self._request

    def kill(self) -> None:
        """End a rank that waits for an answer."""
        self._is_over = True
        if self._thread.ident is not None and self._thread.is_alive() and self._request is not None:
            self._state.install()
            self._go.release()
            self._back.acquire(timeout=_LOOK_S)

    def _blocked_at(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return line_of(self._folder, frame) or self.at

    # In the thread

    def ask(self, request: Request) -> Any:
        """Suspend this rank until the hub has done what is asked for; return what it returned, or raise what it raised.

        Raises Killed if the run has ended.
        """
        if self._is_over:
            raise Killed
        self.at = line_of(self._folder, sys._getframe(1)) or self.at
        self._request = request
        self._back.release()
        self._go.acquire()
        self._computed = cpu_seconds()
        if self._is_over:
            raise Killed
        refusal, self.refusal = self.refusal, None
        if refusal:
            raise refusal
        return self.answer

    def computed(self) -> float:
        """Return the seconds that this rank has computed since it was asked last, or resumed."""
        now = cpu_seconds()
        seconds, self._computed = now - self._computed, now
        return seconds

    def _run(self) -> None:
        self._go.acquire()
        self._computed = cpu_seconds()
        try:
            if not self._is_over:
                self._work()
        except SystemExit as end:
            if end.code not in (None, 0):
                self.error = end
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self._request = None
        self._back.release()


def line_of(folder: str, frame: FrameType | None) -> str:
    """Return the line, such as "train.py:12", that the innermost frame in this folder is at; "": there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(folder):
            return f"{os.path.relpath(file, folder)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _all_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
