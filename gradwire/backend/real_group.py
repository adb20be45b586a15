# mypy: disable-error-code="override"
"""The process group of the backend "gradwire": ranks that are processes of one machine, and share memory.

A collective that its caller waits for runs in the caller, after those that it has begun before. Others run in their
order on one thread of the group. Messages have pipes of their own; they are received in the caller's waits.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.util import Finalize
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from typing_extensions import override

from gradwire.backend import rendezvous
from gradwire.backend.calls import Collective, Message, Tensors
from gradwire.backend.chosen import chosen_all_reduce
from gradwire.backend.collectives import plans
from gradwire.backend.process_group import CollectiveGroup
from gradwire.backend.records import GroupLog, RunRecords, begin_records
from gradwire.backend.registration import NAME
from gradwire.backend.transport import GroupTransport, Shared
from gradwire.backend.works import RealCollective, RealMessage
from gradwire.core.records.errors import one_line
from gradwire.core.transports.base import ANY
from gradwire.core.transports.messages import Setup

_LAST_S = 30.0  # that the end of a group waits for peers that have not read what was sent to them
_PARTING_S = 1.0  # the same after an error
_groups: WeakSet["RealGroup"] = WeakSet()
_runs: WeakKeyDictionary["RealGroup", RunRecords] = WeakKeyDictionary()  # by the default group
os.register_at_fork(after_in_child=_groups.clear)


class RealGroup(CollectiveGroup):
    """A process group on `GroupTransport`s: one for its collectives, and one for its messages."""

    kind = group_desc = NAME

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size, timeout)
        self.plans = plans(chosen_all_reduce())
        self._state = Shared(range(size))
        pipes = rendezvous.meet(store, rank, size, timeout, meshes=2)
        if not _runs and (begun := begin_records(store, rank, size, timeout)) is not None:
            _runs[self] = begun
        self.recorder = next((run.recorder for run in _runs.values()), None)
        self.logs = GroupLog(self.recorder, self._state), GroupLog(self.recorder, self._state)
        setups = (Setup(torch.device("cpu"), timeout.total_seconds(), log) for log in self.logs)
        ends = zip(pipes, setups, strict=True)
        self.collectives, self.messages = (GroupTransport(of, setup, self._state) for of, setup in ends)
        self.turn, self.talking = threading.RLock(), threading.RLock()  # who holds the one and the other
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed, self._left = threading.Condition(), 0  # begun by others, and not ended
        self._thread: threading.Thread | None = None
        self.receives: list[RealMessage] = []  # that have found no message yet, in their order
        _groups.add(self)
        Finalize(None, _end_groups, exitpriority=1)  # unlike atexit's, it is called in forked ranks too

    @property
    def event_name(self) -> str:
        """The name of its backend, as a profiler shows it."""
        return str(dist.distributed_c10d._world.pg_map.get(self, (NAME,))[0])

    @override
    def enter(
        self, call: Collective, result: Tensors, limit: timedelta | None, given: Tensors, is_awaited: bool
    ) -> RealCollective:
        limit = limit if limit is not None and limit > timedelta(0) else self.limit
        self._state.ranks = call.ranks
        work = RealCollective(self, call, result, limit, given)
        if is_awaited and work._event is None and threading.current_thread() is not self._thread:
            if self._left:
                with self._changed:
                    self._changed.wait_for(lambda: not self._left)  # each has a limit
            work.run()
        else:
            work.run_later()
        return work

    @override
    def begin(self, call: Message, tensors: Tensors) -> RealMessage:
        self._state.ranks = self.ranks()
        work = RealMessage(self, call, tensors, self.limit)
        work.begin()
        return work

    def do_later(self, action: Callable[[], None]) -> None:
        """Let the thread of the group do something, when it has done what came before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"{NAME} {self.group_name}", daemon=True)
            self._thread.start()
        with self._changed:
            self._left += 1
        self._queue.put(action)
        if threading.current_thread() is self._thread:  # in the callback of a future, which may wait for it
            self._serve(action)

    def _serve(self, last: Callable[[], None] | None = None) -> None:
        """Do what comes, until `last` is done, or None comes."""
        while (action := self._queue.get()) is not None:
            action()
            is_last = action is last
            del action  # whose tensors may be large
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
            if is_last:
                return
        self._queue.put(None)  # for the loop around this one

    def fail(self, why: str) -> None:
        """End the group for a reason; its peers learn it on all pipes that no other thread of this rank waits for."""
        self._state.failure = self._state.failure or why
        for lock, transport in ((self.turn, self.collectives), (self.talking, self.messages)):
            if lock.acquire(timeout=1.0):  # who holds it for longer will find the failure, and tell it
                try:
                    transport.tell_failure()
                finally:
                    lock.release()

    @property
    def failure(self) -> str:
        """What has ended the group."""
        return self._state.failure

    def look_around(self) -> None:
        """Hear where the others are, on the pipes that no other thread of this rank waits for."""
        for lock, transport in ((self.turn, self.collectives), (self.talking, self.messages)):
            if lock.acquire(blocking=False):
                try:
                    transport.look()
                finally:
                    lock.release()

    def shutdown(self) -> None:
        """Close the group, after what its thread has to do: see `destroy_process_group`."""
        if self not in _groups:
            return
        _groups.discard(self)
        last: BaseException | None = getattr(sys, "last_value", None)
        failure = self._state.failure or (one_line(last) if last is not None else "")
        patience = _PARTING_S if failure else _LAST_S
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(patience)
        for lock, transport in ((self.turn, self.collectives), (self.talking, self.messages)):
            if lock.acquire(timeout=1.0):
                try:
                    transport.timeout = patience
                    transport.close()
                finally:
                    lock.release()
        if (run := _runs.pop(self, None)) is not None:
            run.end(failure)

    abort = shutdown

    def flushed(self, peer: int) -> bool:
        """Return whether the pipe to a peer has taken all messages."""
        with self.talking:
            self.messages._progress(ANY, 0)
            return self.messages.flush(peer)


def _end_groups() -> None:
    for group in [*_groups]:
        group.shutdown()
