"""GRADWIRE_RECORD=DIR: records of a script's run, as those of strategies; with GRADWIRE_HASHES=1 hashes of its steps.

Each rank writes its events to a temporary folder of the run, in which it holds a lock until it ends. The rank that ends
last, or finds that those which have not ended are dead, writes the records of all.
"""

import fcntl
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import override

from gradwire.backend.hashes import ScriptHashes
from gradwire.backend.lines import file_of
from gradwire.backend.registration import NAME
from gradwire.backend.rendezvous import wait_for
from gradwire.backend.transport import Place, Shared
from gradwire.core.records import files, tables
from gradwire.core.records.atomic import check_writable
from gradwire.core.records.errors import UsageError
from gradwire.core.records.events import EventFile, RunEvents
from gradwire.core.records.machine import digests, git_commit, machine, name_of
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.unfinished import run_lock
from gradwire.core.transports import timing
from gradwire.diagnosis.hashes import Arrays, packed
from gradwire.results import HASHES as HASHES_SUFFIX

VARIABLE, HASHES = "GRADWIRE_RECORD", "GRADWIRE_HASHES"
_TAGS = 100  # collectives whose messages have tags of their own


class RankRecorder(Recorder):
    """The events of a rank, which all its groups add; `at` is the line of the script that they are due to."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.epoch, self.at, self.guard = 1, "", threading.Lock()
        self._places, self._followed = {"": 0}, {"": {}}  # it is told the lines

    @override
    def _line_at_work(self) -> int:
        if self.at not in self._places:
            name, _, line = self.at.rpartition(":")
            self._places[self.at] = len(self._lines)
            self._lines.append(f"{name_of(file_of(name))}:{line}" if name else "")
        return self._places[self.at]

    @property
    def files(self) -> set[str]:
        """The sources whose lines were recorded."""
        return {line.rpartition(":")[0] for line in self._lines if line}


class GroupLog(Recorder):
    """Passes on the events of one transport of a group to the records of its rank, if there are any."""

    def __init__(self, to: RankRecorder | None, group: Shared) -> None:
        super().__init__(to.rank if to else 0, enabled=to is not None)
        self._to, self._group = to, group
        self._place, self._shows_waits = Place(0, "", ""), True

    def begin(self, place: Place, shows_waits: bool) -> None:
        """Note what the next events belong to; `shows_waits`: its rank waits, not a thread beside it."""
        self._place, self._shows_waits = place, shows_waits

    @override
    def add(self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, tag: str = "", *more: Any) -> None:
        if self._to is None or not self._to.enabled or not (op or self._shows_waits):
            return
        place, ranks = self._place, self._group.ranks
        kind = place.words.partition(" ")[0]
        if op:
            tag = f"{kind} {place.number % _TAGS}: {tag}" if place.number else f"message {tag}"
        with self._to.guard:
            self._to.at = place.line
            self._to.add(phase, t0, t1, op, ranks[peer] if peer >= 0 else -1, tag if op else kind, *more)


class RankPart(NamedTuple):
    """What one rank adds to the records."""

    events: EventFile
    sources: set[str]
    hashes: Arrays | None
    failure: str


class RunRecords:
    """The records of a run, from the making of its default group to its end."""

    def __init__(self, directory: str, store: dist.Store, rank: int, size: int, limit: timedelta) -> None:
        self._directory, self._size = directory, size
        if rank == 0:
            try:
                check_writable(directory)
            except OSError as error:
                store.set("records", f"\n{error.strerror or error}")
            else:
                store.set("records", f"{_script()}-{datetime.now():%Y%m%d-%H%M%S-%f}\n{tempfile.mkdtemp()}")
        self._name, _, folder = store.get("records").decode().partition("\n")
        if not self._name:
            raise UsageError(f"{VARIABLE}={directory}: cannot write there: {folder}")
        self._folder = Path(folder)
        self._lock = open(self._folder / f"{rank}.lock", "w")  # noqa: SIM115 - open until the rank ends
        fcntl.lockf(self._lock, fcntl.LOCK_EX)  # which no forked process inherits
        self.recorder = RankRecorder(rank)
        self.recorder.write_to(self._folder / f"{rank}.events")
        store.set(f"records of {rank}", "")
        for peer in range(size):
            wait_for(store, f"records of {peer}", limit, peer)
        self._hashes = ScriptHashes() if os.environ.get(HASHES) == "1" else None
        self._begun = timing.now()
        self._optimizer: torch.optim.Optimizer | None = None  # the first, whose steps count
        self._hook = register_optimizer_step_post_hook(self._stepped)
        self._ends_at_signal = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._ends_at_signal:  # torchrun and mp.spawn send it to the other ranks when one has died
            signal.signal(signal.SIGTERM, _end_process)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        self.recorder.step += optimizer is self._optimizer

    def end(self, failure: str) -> None:
        """End the records of this rank, whose run has failed for that reason if there is one."""
        self._hook.remove()
        if self._ends_at_signal:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # until the records are written
        recorder = self.recorder
        with recorder.guard:
            recorder.mark("epoch_s", timing.now() - self._begun)
            recorder.enabled = False
            events = recorder.close()
        part = self._folder / f"{recorder.rank}.part"
        hashes = self._hashes.end() if self._hashes else None
        part.write_bytes(pickle.dumps(RankPart(events, recorder.files, hashes, " ".join(failure.split()))))
        part.rename(self._ended(recorder.rank))
        running = [rank for rank in range(self._size) if not self._ended(rank).exists()]
        if not any(map(self._is_alive, running)):
            with suppress(FileExistsError, FileNotFoundError):  # another rank has ended at the same time
                (self._folder / "writer").mkdir()
                # One that was alive may have ended since.
                dead = [rank for rank in running if not self._ended(rank).exists()]
                ended = (self._ended(rank) for rank in range(self._size) if rank not in dead)
                self._write([pickle.loads(path.read_bytes()) for path in ended], dead)
                shutil.rmtree(self._folder)
        self._lock.close()
        if self._ends_at_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _ended(self, rank: int) -> Path:
        return self._folder / f"{rank}.ended"

    def _is_alive(self, rank: int) -> bool:
        """Return whether a rank that has not ended may yet end."""
        with open(self._folder / f"{rank}.lock", "r+") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def _write(self, parts: Sequence[RankPart], dead: Sequence[int]) -> None:
        """Write the records of all ranks but those that are dead, which have left none."""
        N, events = self._size, RunEvents([part.events for part in parts])
        roles = ["worker"] * N
        table = tables.epoch_table(events, _script(), N, roles)
        missing = f"of rank {', '.join(map(str, dead))}, which died, there are no records" if dead else ""
        failure = next((part.failure for part in parts if part.failure), "")
        remarks = [f"{N} processes of torch.distributed with the backend gradwire", missing, failure]
        metadata = {
            "strategy": _script(), "n_gpus": N, "processes": N, "roles": roles, **tables.totals(table),
            "replicas_identical": None, "deaths": [{"rank": rank, "returned": False} for rank in dead],
            "options": {"script": sys.argv[0], "n_gpus": N, "arguments": sys.argv[1:]},
            "transport": "shared_memory", "bytes": "counted",
            "sources": digests(set().union(*(part.sources for part in parts))),
            "remark": "; ".join(filter(None, remarks)) + ".",
            "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}", "machine": machine(), "git_commit": git_commit(),
        }  # fmt: skip
        hashes = {part.events.rank: part.hashes for part in parts if part.hashes}
        if self._hashes is not None and not hashes:
            print(f"{HASHES}: no rank made a step of an optimizer; there are no hashes", file=sys.stderr)
        others = {f"{Path(self._directory) / self._name}{HASHES_SUFFIX}": packed(hashes)} if hashes else {}
        with run_lock(self._directory, self._name):
            files.write_run(self._directory, self._name, events, table, metadata, others)
        if missing:
            print(f"{VARIABLE}: {Path(self._directory) / self._name}: {missing}", file=sys.stderr)


def begin_records(store: dist.Store, rank: int, size: int, limit: timedelta) -> RunRecords | None:
    """Begin the records of a run with its default group, if the environment asks for them. Raises UsageError."""
    directory, hashes = os.environ.get(VARIABLE), os.environ.get(HASHES, "0")
    if hashes not in ("0", "1") or (hashes == "1" and directory is None):
        raise UsageError(f"{HASHES}={hashes}: give 1, and {VARIABLE}=DIR for the records")
    if directory is None:
        return None
    if dist.is_initialized():
        raise UsageError(
            f"{VARIABLE}={directory}: the default group has another backend; call init_process_group({NAME!r})"
        )
    return RunRecords(directory, store, rank, size, limit)


def _script() -> str:
    return Path(sys.argv[0]).stem or "python"


def _end_process(number: int, *_: Any) -> None:
    sys.exit(128 + number)
