"""What happened on one rank, as a stream of events; every table and picture of a run is made from it.

An event is a span of one phase (`t0` to `t1`, seconds of a clock that all processes of the machine share), possibly
the sending or receiving of one message, or a mark (a value measured once, such as the test accuracy of an epoch).

Versions of the parameters are recorded where an algorithm lets them differ:

- a gradient, or a push of several, that was applied: phase update, no op, peer the worker, version_read
  what it was computed on, version_applied what it was applied to; their difference is its staleness. The versions that
  a worker has made itself with pushes since its last fetch count as read
- a gradient that came too late and was dropped: phase communicate, op drop, no length, the same peer and versions
- a worker that read x while it changed: phase communicate, op read, peer 0, version_read as the read began,
  version_applied as it ended. No message is sent, but it counts as one from the peer, as with other transports
- an update of a shared x that is a load and a store: phase update from the load to the store, op store, version_read
  what was loaded, version_applied what was overwritten; if they differ, updates are lost

`line`, such as "strategies/collectives.py:48", is where the algorithm was at that moment: of the files that the
recorder follows, the line of the innermost caller. Empty outside of them, as in the phases of the training loop.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

PHASES = ("data", "forward", "backward", "compress", "communicate", "wait", "update")
CODE_MARKS = ("codes", "value_bytes", "index_bytes", "header_bytes", "dense_bytes")
METERS = {"replica_distance": "replicas apart", "lost_updates": "lost updates", "hidden_communication": "hidden"}
"""The quantities that strategies measure, and their names in a summary."""
SCORE = "score"  # a mark of a score whose name, such as test_perplexity, is its tag
MARKS = ("epoch_s", "samples", "train_loss", "test_loss", "test_accuracy", *METERS, *CODE_MARKS, SCORE)
OPS = ("", "send", "recv", "drop", "read", "store")

_FIELDS = {
    "epoch": "i", "step": "q", "t0": "d", "t1": "d", "phase": "i", "op": "i", "peer": "i", "tag": "i", "bytes": "q",
    "version_read": "q", "version_applied": "q", "line": "i", "value": "d",
}  # fmt: skip
ROW = struct.Struct("<" + "".join(_FIELDS.values()))
_DTYPE = np.dtype([(name, "<" + kind) for name, kind in _FIELDS.items()])
HIDDEN = "hidden"  # a message that a built-in sends inside another phase: counted by formula, its time unknown
EVALUATE = "evaluate"  # a message that carries the model to the rank that evaluates or saves it: not part of training
_NAMES = (*PHASES, *MARKS, HIDDEN, EVALUATE)
CODE = {name: code for code, name in enumerate(_NAMES)}
OP = {name: code for code, name in enumerate(OPS)}
_CHUNK = 65536  # events that are read from a file at once

Events: TypeAlias = pd.DataFrame | Iterable[pd.DataFrame]
"""Events as `Recorder.frame()` returns them, in one piece or, to be iterated over again and again, in several."""


@dataclass(frozen=True)
class EventFile:
    """The events of one rank, in the order they were written.

    `rows_in` is the file that its recorder has closed, or its content in compressed pieces.
    """

    rank: int
    rows_in: Path | Sequence[bytes]
    tags: Sequence[str]
    lines: Sequence[str]

    def rows(self) -> Iterator[bytes]:
        """Yield the rows, some ten thousand at a time. Raises OSError."""
        if not isinstance(self.rows_in, Path):
            yield from map(zlib.decompress, self.rows_in)
            return
        with open(self.rows_in, "rb") as file:
            while rows := file.read(_CHUNK * ROW.size):
                yield rows

    def carry(self) -> "EventFile":
        """Return the events themselves, for another machine, which does not see the file. Raises OSError."""
        return replace(self, rows_in=[zlib.compress(rows, 1) for rows in self.rows()])


@dataclass(frozen=True)
class RunEvents:
    """The events of a run, rank after rank, some ten thousand at a time: see `Events`."""

    ranks: Sequence[EventFile]

    def __iter__(self) -> Iterator[pd.DataFrame]:
        parts: list[tuple[EventFile, bytes]] = []
        for rank in self.ranks:
            for rows in rank.rows():
                parts.append((rank, rows))
                if sum(len(some) for _, some in parts) >= _CHUNK * ROW.size:
                    yield frame_of(parts)
                    parts = []
        if parts:
            yield frame_of(parts)


def chunks(events: Events) -> Iterator[pd.DataFrame]:
    """Yield the events piece by piece, at least one, which may be empty."""
    pieces = iter((events,) if isinstance(events, pd.DataFrame) else events)
    yield next(pieces, frame_of([(EventFile(0, (), ("",), ("",)), b"")]))
    yield from pieces


def frame_of(parts: Sequence[tuple[EventFile, bytes]]) -> pd.DataFrame:
    """Return the events of one rank or several, of each some of its rows, as `Recorder.frame()` does."""
    arrays = [np.frombuffer(rows, dtype=_DTYPE) for _, rows in parts]
    rows = np.concatenate(arrays)
    events = pd.DataFrame({name: rows[name] for name in _FIELDS})
    events["phase"] = np.array(_NAMES, dtype=object)[rows["phase"]]
    events["op"] = np.array(OPS, dtype=object)[rows["op"]]
    for column, of_ranks in (("tag", [rank.tags for rank, _ in parts]), ("line", [rank.lines for rank, _ in parts])):
        found = [np.array(names, dtype=object)[of[column]] for names, of in zip(of_ranks, arrays, strict=True)]
        events[column] = np.concatenate(found)
    events.insert(0, "rank", np.repeat([rank.rank for rank, _ in parts], [len(array) for array in arrays]))
    return events
