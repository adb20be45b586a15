"""GRADWIRE_RECORD=DIR: records of a script's run, as those of strategies.

Each rank writes its events to a temporary folder of the run. The rank that ends last writes the records of all.
"""

import os
import pickle
import shutil
import sys
import tempfile
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import override

from gradwire.backend.lines import file_of
from gradwire.backend.registration import NAME
from gradwire.backend.transport import Place, Shared
from gradwire.core.records import files, tables
from gradwire.core.records.atomic import check_writable
from gradwire.core.records.errors import UsageError
from gradwire.core.records.events import EventFile, RunEvents
from gradwire.core.records.machine import digests, git_commit, machine, name_of
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.unfinished import run_lock
from gradwire.core.transports import timing

VARIABLE = "GRADWIRE_RECORD"
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


class RunRecords:
    """The records of a run, from the making of its default group to its end."""

    def __init__(self, directory: str, store: dist.Store, rank: int, size: int) -> None:
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
        self.recorder = RankRecorder(rank)
        self.recorder.write_to(self._folder / f"{rank}.events")
        self._begun = timing.now()
        self._optimizer: torch.optim.Optimizer | None = None  # the first, whose steps count
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        self.recorder.step += optimizer is self._optimizer

    def end(self, has_failed: bool) -> None:
        """End the records of this rank; the last one writes those of all. Without one rank's, none are written."""
        self._hook.remove()
        recorder = self.recorder
        with recorder.guard:
            recorder.mark("epoch_s", timing.now() - self._begun)
            recorder.enabled = False
            events = recorder.close()
        if has_failed:
            shutil.rmtree(self._folder, ignore_errors=True)
        part = self._folder / f"{recorder.rank}.part"
        try:
            part.write_bytes(pickle.dumps((events, recorder.files)))
        except FileNotFoundError:
            print(f"{VARIABLE}: a rank has failed; no records were written", file=sys.stderr)
            return
        part.rename(part.with_suffix(".ended"))
        ended = [self._folder / f"{rank}.ended" for rank in range(self._size)]
        if all(path.exists() for path in ended):
            with suppress(FileExistsError, FileNotFoundError):  # another rank has ended at the same time
                (self._folder / "writer").mkdir()
                self._write([pickle.loads(path.read_bytes()) for path in ended])
                shutil.rmtree(self._folder)

    def _write(self, parts: list[tuple[EventFile, set[str]]]) -> None:
        N, events = self._size, RunEvents([events for events, _ in parts])
        roles = ["worker"] * N
        table = tables.epoch_table(events, _script(), N, roles)
        metadata = {
            "strategy": _script(), "n_gpus": N, "processes": N, "roles": roles, **tables.totals(table),
            "replicas_identical": None, "deaths": [],
            "options": {"script": sys.argv[0], "n_gpus": N, "arguments": sys.argv[1:]},
            "transport": "shared_memory", "bytes": "counted",
            "sources": digests(set().union(*(sources for _, sources in parts))),
            "remark": f"{N} processes of torch.distributed with the backend gradwire.",
            "ended": f"{datetime.now():%Y-%m-%d %H:%M:%S}", "machine": machine(), "git_commit": git_commit(),
        }  # fmt: skip
        with run_lock(self._directory, self._name):
            files.write_run(self._directory, self._name, events, table, metadata)


def begin_records(store: dist.Store, rank: int, size: int) -> RunRecords | None:
    """Begin the records of a run with its default group, if the environment asks for them. Raises UsageError."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return None
    if dist.is_initialized():
        raise UsageError(
            f"{VARIABLE}={directory}: the default group has another backend; call init_process_group({NAME!r})"
        )
    return RunRecords(directory, store, rank, size)


def _script() -> str:
    return Path(sys.argv[0]).stem or "python"
