"""What happened on one rank, as a stream of events; every table and picture of a run is made from it.

An event is a span of one phase (`t0` to `t1`, seconds of a clock that all processes of the machine share), possibly
the sending or receiving of one message, or a mark (a value measured once, such as the test accuracy of an epoch).

Versions of the parameters are recorded where an algorithm lets them differ:

- a gradient, or a push of several, that was applied: phase update, no op, peer the worker, tag that of its message,
  version_read what it was computed on, version_applied what it was applied to; their difference is its staleness. The
  versions that a worker has made itself with pushes since its last fetch count as read
- a gradient that came too late and was dropped: phase communicate, op drop, no length, the same peer and versions
- a worker that read x while it changed: phase communicate, op read, peer 0, version_read as the read began,
  version_applied as it ended. Nobody sends for it: it counts as a message from the peer, which it would be elsewhere
"""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd

PHASES = ("data", "forward", "backward", "compress", "communicate", "wait", "update")
MARKS = ("epoch_s", "samples", "train_loss", "test_loss", "test_accuracy")
OPS = ("", "send", "recv", "drop", "read")

# epoch, step, t0, t1, phase, op, peer, tag, bytes, version read, version applied, value
_ROW = struct.Struct("<iqddiiiiqqqd")
_DTYPE = np.dtype(
    [
        ("epoch", "<i4"),
        ("step", "<i8"),
        ("t0", "<f8"),
        ("t1", "<f8"),
        ("phase", "<i4"),
        ("op", "<i4"),
        ("peer", "<i4"),
        ("tag", "<i4"),
        ("bytes", "<i8"),
        ("version_read", "<i8"),
        ("version_applied", "<i8"),
        ("value", "<f8"),
    ]
)
HIDDEN = "hidden"  # a message that a built-in sends inside another phase: counted by formula, its time unknown
_NAMES = (*PHASES, *MARKS, HIDDEN)
_CODE = {name: code for code, name in enumerate(_NAMES)}
_OP = {name: code for code, name in enumerate(OPS)}
_NAN = float("nan")


class Recorder:
    """Collects the events of one rank.

    The training loop sets `epoch` and `step`; they are written into every event. `enabled = False` drops phases and
    messages (marks are kept). `synchronize`, if given, is called at both ends of a phase: on a GPU, work is queued,
    and a phase is over only when its work is. `clock` times marks and phases; a transport that is given the recorder
    sets it to its own `now`.
    """

    def __init__(
        self,
        rank: int = 0,
        enabled: bool = True,
        synchronize: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rank = rank
        self.enabled = enabled
        self.epoch = 0
        self.step = 0
        self.deaths: list[dict[str, Any]] = []  # of workers, told by a server that continues without them
        self.synchronize = synchronize
        self.clock = clock
        self._rows = bytearray()
        self._tags: dict[str, int] = {"": 0}

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
        """Record one span of `phase`; `op`, `peer`, `tag` and `nbytes` describe the message, if it was one."""
        if self.enabled:
            tag_code = self._tags.setdefault(tag, len(self._tags))
            self._rows += _ROW.pack(
                self.epoch, self.step, t0, t1, _CODE[phase], _OP[op], peer, tag_code, nbytes,
                version_read, version_applied, _NAN,
            )  # fmt: skip

    def mark(self, name: str, value: float) -> None:
        """Write a value measured once an epoch; `name` is one of MARKS."""
        now = self.clock()
        self._rows += _ROW.pack(self.epoch, self.step, now, now, _CODE[name], 0, -1, 0, 0, -1, -1, value)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as one event of phase `name`."""
        if not self.enabled:
            yield
            return
        if self.synchronize:
            self.synchronize()
        t0 = self.clock()
        yield
        if self.synchronize:
            self.synchronize()
        self.add(name, t0, self.clock())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record no phase and no message in the block."""
        enabled, self.enabled = self.enabled, False
        yield
        self.enabled = enabled

    def frame(self) -> pd.DataFrame:
        """Return the events in the order they were written, one a row; `value` is NaN except in marks."""
        rows = np.frombuffer(bytes(self._rows), dtype=_DTYPE)
        events = pd.DataFrame({name: rows[name] for name in _DTYPE.names or ()})
        events["phase"] = np.array(_NAMES, dtype=object)[rows["phase"]]
        events["op"] = np.array(OPS, dtype=object)[rows["op"]]
        events["tag"] = np.array(list(self._tags), dtype=object)[rows["tag"]]
        events.insert(0, "rank", self.rank)
        return events
