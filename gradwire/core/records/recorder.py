"""What collects the events of one rank: see `gradwire.core.records.events`.

A recorder writes its events to a file as they come, some thousands at a time: its memory does not grow with the run.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

import pandas as pd

from gradwire.core.records.errors import RunFailed
from gradwire.core.records.events import CODE, CODE_MARKS, EVALUATE, OP, ROW, SCORE, EventFile, frame_of
from gradwire.core.records.machine import name_of
from gradwire.core.records.observer import Observer

_NAN = float("nan")
_pack = ROW.pack
_BUFFERED = 8192 * ROW.size  # bytes that a recorder keeps in memory


@dataclass(eq=False)
class Recorder:
    """Collects the events of one rank, in the file that `write_to` names, else in a temporary one without a name.

    The training loop sets `epoch` and `step`; they are written into every event. `enabled = False` drops phases and
    messages (marks are kept). `synchronize`, if given, is called at both ends of a phase: on a GPU, work is queued,
    and a phase is over only when its work is. `clock` times marks and phases; a transport with this recorder sets it
    to its own `now`. `time_passes`, if set, is called with the name of a phase and its part when its work is
    done: in virtual time it is this that takes time. `shares[i]` is the part of a pass that belongs to parameter i;
    callers may spend a pass in these parts.
    """

    rank: int = 0
    enabled: bool = True
    synchronize: Callable[[], None] | None = None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.is_evaluating = False
        self.epoch = 0
        self.step = 0
        self.deaths: list[dict[str, Any]] = []  # of workers, reported by a server that continues without them
        self.meters: dict[str, float] = {}  # the quantities that an algorithm measured in an epoch, by one of MARKS
        self.applied = ""  # the messages that a server applies one by one, with their staleness: "gradient" or "push"
        self.time_passes: Callable[[str, float], None] | None = None
        self.shares_of: Callable[[Any, Callable[[], object]], Sequence[float]] | None = None  # a model's, by its pass
        self.shares: Sequence[float] = ()
        self.observers: list[Observer] = []
        self._spent = 0.0  # of the phase that goes on
        self._rows = bytearray()  # events that are not in the file yet
        self._file: IO[bytes] | None = None
        self._path: Path | None = None
        self._tags: dict[str, int] = {"": 0}
        self._lines = [""]
        self._followed: dict[str, dict[int, int]] = {}  # by file and line: its place among _lines
        self._of_codes: Counter[str] = Counter()

    def follow(self, files: Iterable[str]) -> None:
        """From now on, note beside each event which line of these sources was at work, the innermost if several."""
        self._followed = {file: {} for file in files}

    def _line_at_work(self) -> int:
        """Return the number of the line that the caller's caller works for; 0: of none that is followed."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            lines, line = self._followed.get(frame.f_code.co_filename), frame.f_lineno
            if lines is not None:
                if line not in lines:
                    lines[line] = len(self._lines)
                    self._lines.append(f"{name_of(frame.f_code.co_filename)}:{line}")
                return lines[line]
            frame = frame.f_back
        return 0

    def add(
        self,
        phase: str,
        t0: float,
        t1: float,
        op: str = "",
        peer: int = -1,
        tag: str = "",
        nbytes: int = 0,
        version_read: int = -1,
        version_applied: int = -1,
    ) -> None:
        """Record one span of `phase`; the other arguments describe the message, if it was one. Raises RunFailed."""
        if self.is_evaluating:
            phase = EVALUATE
        if self.enabled and (op or not self.is_evaluating):
            tag_code = self._tags.setdefault(tag, len(self._tags))
            line = self._line_at_work() if self._followed else 0
            self._rows += _pack(
                self.epoch, self.step, t0, t1, CODE[phase], OP[op], peer, tag_code, nbytes,
                version_read, version_applied, line, _NAN,
            )  # fmt: skip
            if len(self._rows) >= _BUFFERED:
                self._write()
            for observer in self.observers:
                observer.span(phase, t1 - t0, op, nbytes, version_read, version_applied)

    def mark(self, name: str, value: float) -> None:
        """Write a value measured once an epoch; `name` is one of MARKS, or of a score that begins with test_."""
        for observer in self.observers:
            observer.mark(name, value)
        now, tag = self.clock(), 0
        if name not in CODE and name.startswith("test_"):
            name, tag = SCORE, self._tags.setdefault(name, len(self._tags))
        self._rows += ROW.pack(self.epoch, self.step, now, now, CODE[name], 0, -1, tag, 0, -1, -1, 0, value)

    @contextmanager
    def phase(self, name: str, part: float = 1.0, work: str = "") -> Iterator[None]:
        """Time the block as one event of phase `name`.

        `part`: how much of the usual work it does; `work`: which, where a phase has several kinds. A phase may lie in
        another, such as an update in a backward pass: each takes its own time.
        """
        if self.enabled and self.synchronize:
            self.synchronize()
        t0 = self.clock()
        outside, self._spent = self._spent, 0.0  # of the phase that this one lies in
        if self.observers:
            with ExitStack() as stack:
                for observer in self.observers:
                    stack.enter_context(observer.in_phase(name))
                yield
        else:
            yield
        if self.enabled and self.synchronize:
            self.synchronize()
        if self.time_passes:
            self.time_passes(work or name, max(0.0, part - self._spent))
        self._spent = outside
        if self.enabled:
            self.add(name, t0, self.clock())

    @contextmanager
    def holding(self, kind: str) -> Iterator[None]:
        """Within the block, observers count allocations as memory of this kind."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.holding(kind))
            yield

    def receive(self, message: Any, in_place: bool) -> None:
        """Tell observers of a received message; `in_place`: its memory is the sender's, if that wants it back."""
        for observer in self.observers:
            observer.receive(message, in_place)

    def in_thread(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return what another thread of this rank is to call in place of `call`."""
        for observer in self.observers:
            call = observer.in_thread(call)
        return call

    def spend(self, name: str, i: int) -> None:
        """Inside the block of phase `name`, let the time pass that belongs to parameter `i`; not again at its end."""
        if self.time_passes and self.shares:
            self._spent += self.shares[i]
            self.time_passes(name, self.shares[i])

    def count_code(self, values: float, indices: float, headers: float, dense: float) -> None:
        """Count the bytes of a code that is sent, by kind, and those that it would have without a codec (`dense`)."""
        if self.enabled:
            self._of_codes.update(dict(zip(CODE_MARKS, (1, values, indices, headers, dense), strict=True)))

    def mark_codes(self) -> None:
        """Write the counts of codes since the last call, if there are any."""
        for name, amount in self._of_codes.items():
            self.mark(name, round(amount))
        self._of_codes.clear()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """In the block, record messages as of phase EVALUATE, and no other phase."""
        before, self.is_evaluating = self.is_evaluating, True
        try:
            yield
        finally:
            self.is_evaluating = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record no phase and no message in the block."""
        enabled, self.enabled = self.enabled, False
        yield
        self.enabled = enabled

    def write_to(self, path: Path) -> None:
        """Write the events, also those so far, to a new file at `path`. Raises RunFailed."""
        if self._file is not None:
            raise ValueError("the events are written elsewhere already")
        self._path = path
        with self._room_is_needed():
            self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 - closed by `close`

    def close(self) -> EventFile:
        """Write the remaining events, and return the file that `write_to` named. Raises RunFailed."""
        assert self._path is not None
        assert self._file is not None
        self._write()
        self._file.close()
        return self._at(self._path)

    def frame(self) -> pd.DataFrame:
        """Return the events in the order they were written, one a row; `value` is NaN except in marks.

        All in memory at once: for a run of moderate length. Raises OSError.
        """
        if self._file is not None:
            self._file.seek(0)
        written = self._file.read() if self._file is not None else b""
        return frame_of([(self._at(()), written + self._rows)])

    def _at(self, rows_in: Path | Sequence[bytes]) -> EventFile:
        return EventFile(self.rank, rows_in, tuple(self._tags), tuple(self._lines))

    def _write(self) -> None:
        """Append the rows to the file."""
        rest = memoryview(bytes(self._rows))
        with self._room_is_needed():
            # Without a buffer of its own: the rows are one already.
            file = self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open to the end
            while rest:
                rest = rest[file.write(rest) :]
        self._rows.clear()

    @contextmanager
    def _room_is_needed(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where, why = self._path or tempfile.gettempdir(), f"{error.strerror}; --no_events needs no room"
            raise RunFailed(f"cannot write the events of the run to {where}: {why}") from error
