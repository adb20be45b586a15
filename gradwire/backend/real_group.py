# mypy: disable-error-code="override"
"""The process group of the backend "gradwire": ranks that are processes of one machine, and share memory.

A collective that its caller waits for runs in the caller, after those that it has begun before. Others run in their
order on one thread of the group. Messages have pipes of their own; they are received in the caller's waits.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from typing_extensions import override

from gradwire.backend import rendezvous
from gradwire.backend.calls import Call, Collective, Message, Tensors
from gradwire.backend.chosen import chosen_all_reduce
from gradwire.backend.collectives import plans
from gradwire.backend.lines import line_at_work
from gradwire.backend.process_group import CollectiveGroup
from gradwire.backend.registration import NAME
from gradwire.backend.transport import GroupTransport, Place, Shared
from gradwire.core.records.errors import RunFailed, one_line
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports import timing
from gradwire.core.transports.base import ANY
from gradwire.core.transports.messages import PeerLost, Setup, WaitTimeout

_LAST_S = 30.0  # that the end of a group waits for peers that have not read what was sent to them
_SLICE_S = 0.01  # of a wait for a message, between which other threads may send
_PARTING_S = 1.0  # the same after an error
_YIELD_S = 1e-4  # in which they get the transport
_groups: WeakSet["RealGroup"] = WeakSet()
os.register_at_fork(after_in_child=_groups.clear)


class RealGroup(CollectiveGroup):
    """A process group on `GroupTransport`s: one for its collectives, and one for its messages."""

    kind = group_desc = NAME

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size, timeout)
        self.plans = plans(chosen_all_reduce())
        self._state = Shared(range(size))
        pipes = rendezvous.meet(store, rank, size, timeout, meshes=2)
        setup = Setup(torch.device("cpu"), timeout.total_seconds(), Recorder(rank, enabled=False))
        self.collectives, self.messages = (GroupTransport(of, setup, self._state) for of in pipes)
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

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices; none while torch makes the group, so that it attaches no recorder of its own."""
        return [torch.device("cpu")] if self in dist.distributed_c10d._world.pg_map else []

    @override
    def enter(
        self, call: Collective, result: Tensors, limit: timedelta | None, given: Tensors, is_awaited: bool
    ) -> "RealCollective":
        limit = limit if limit is not None and limit > timedelta(0) else self.limit
        self._state.ranks = call.ranks
        work = RealCollective(self, call, result, limit, given)
        if is_awaited and work._event is None:
            with self._changed:
                self._changed.wait_for(lambda: not self._left)  # each has a limit
            work.run()
        else:
            self.do_later(work.run)
        return work

    @override
    def begin(self, call: Message, tensors: Tensors) -> "RealMessage":
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

    def _serve(self) -> None:
        while (action := self._queue.get()) is not None:
            action()
            del action  # whose tensors may be large
            with self._changed:
                self._left -= 1
                self._changed.notify_all()

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
        has_failed = self._state.failure or getattr(sys, "last_value", None) is not None
        patience = _PARTING_S if has_failed else _LAST_S
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(patience)
        for lock, transport in ((self.turn, self.collectives), (self.talking, self.messages)):
            if lock.acquire(timeout=1.0):
                transport.timeout = patience
                transport.close()
                lock.release()

    abort = shutdown

    def flushed(self, peer: int) -> bool:
        """Return whether the pipe to a peer has taken all messages."""
        with self.talking:
            self.messages._progress(ANY, 0)
            return self.messages.flush(peer)


class RealCollective(Call):
    """A collective of a group, which `run` does."""

    def __init__(
        self, group: RealGroup, call: Collective, result: Tensors, limit: timedelta | None, given: Tensors
    ) -> None:
        super().__init__(call, result, call.ranks, given, group.event_name)
        self._group, self._limit, self.at = group, limit, line_at_work()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._seen: torch.futures.Future[Any] | None = None
        self._guard = threading.RLock()

    @property
    def collective(self) -> Collective:
        assert isinstance(self.call, Collective)
        return self.call

    def run(self) -> None:
        """Do this rank's part."""
        group, call, transport = self._group, self.collective, self._group.collectives
        place = Place(call.number, call.words, self.at)
        me = f"rank {call.ranks[transport.rank]}"
        with group.turn:
            try:
                transport.timeout = self._limit.total_seconds() if self._limit else transport.timeout
                transport.enter(place)
                call.run(group.plans, transport, self.at)
                transport.check_group()
            except WaitTimeout as late:
                group.look_around()
                waits = f"{me} waits in {place} for {_named(transport, late.ranks)}"
                self._error = RuntimeError(
                    f"{NAME} process group: Timed out waiting {1000 * transport.timeout:g}ms: {waits}"
                )
            except PeerLost as lost:
                self._error = RunFailed(f"{me} is in {place}: {_lost(transport, lost)}")
            except RunFailed as error:
                self._error = RunFailed(group.failure or str(error))
            except BaseException as error:
                self._error = error
        if isinstance(self._error, RuntimeError) and not isinstance(self._error, NotImplementedError):
            group.fail(str(self._error))
        elif self._error is not None and not isinstance(self._error, Exception):
            group.fail(f"{me} is in {place}: {one_line(self._error)}")
        self.end_event()
        self.ended = True
        self._is_over.set()
        self._complete()

    def _complete(self) -> None:
        with self._guard:
            if self._future is not None and self.ended and not self._future.done():
                self._future.set_result(None)

    @override
    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._is_over.wait(timeout.total_seconds() if timeout else None):
            raise RuntimeError(_late(timeout.total_seconds() if timeout else 0.0, f"{self.call.words} at {self.at}"))
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self.ended

    def is_success(self) -> bool:
        return self.ended and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def get_future(self) -> "torch.futures.Future[Any]":
        if self._seen is None:
            ended: torch.futures.Future[Any] = torch.futures.Future()

            def result_of(_: Any) -> list[torch.Tensor]:
                if self._error is not None:
                    raise self._error  # which C++ sees too, unlike that of `set_exception`
                return self.tensors

            self._seen = ended.then(result_of)
            self._future = ended
            self._complete()
        return self._seen


class RealMessage(Call):
    """A message that is sent, or a receive."""

    def __init__(self, group: RealGroup, call: Message, tensors: Tensors, limit: timedelta | None) -> None:
        super().__init__(call, tensors, group.ranks(), tensors, group.event_name)
        self._group, self._limit, self.at = group, limit, line_at_work()
        self._peer = ANY if call.peer is None else self._ranks.index(call.peer)
        self._error: BaseException | None = None
        self._place = Place(0, call.words, self.at)

    def begin(self) -> None:
        """Send it, or look for the message."""
        group, call = self._group, self.message
        with group.talking:
            if call.is_sent:
                group.messages.enter(self._place)
                group.messages.isend(call.tensor, self._peer, str(call.tag))
                self._end()
            else:
                group.receives.append(self)

    def _end(self) -> None:
        self.ended = True
        if self._event is not None:
            self._group.do_later(self.end_event)  # for a profiler, it has not ended where it began

    def _take(self) -> bool:
        """Take a message that is there; return whether the receive has ended."""
        transport, call = self._group.messages, self.message
        try:
            found = transport.recv(self._peer, str(call.tag), 0)
        except PeerLost as lost:
            self._error = RunFailed(f"rank {self._ranks[transport.rank]} is in {self._place}: {_lost(transport, lost)}")
            return True
        if found is None:
            return False
        self.source = self._ranks[found.src]
        wanted, vector, sent = call.tensor, found.vector, found.object
        if (vector.numel(), vector.dtype) != (wanted.numel(), wanted.dtype):
            found.release()
            mine = f"rank {self._ranks[transport.rank]} is in {self._place}"
            self._error = RunFailed(f"mismatch: rank {self.source} is in {sent}, {mine}")
            self._group.fail(str(self._error))
        else:
            with found:
                wanted.copy_(vector.view(wanted.shape))
        self._end()
        return True

    def _look(self, seconds: float) -> bool:
        """Return whether it has ended; wait at most `seconds` for a message."""
        group = self._group
        with group.talking:
            if self.ended or self._error:
                return True
            if group.messages.place is not self._place:
                group.messages.enter(self._place)
            if seconds:
                group.messages._progress(self._peer, seconds)
            group.receives = [receive for receive in group.receives if not receive._take()]
            return self.ended or self._error is not None

    @override
    def wait(self, timeout: timedelta | None = None) -> bool:
        limit = timeout or self._limit or self._group.limit
        assert limit is not None
        clock = timing.RunningClock()
        until = clock() + limit.total_seconds()
        if self.message.is_sent:
            while not self._group.flushed(self._peer):
                if clock() > until:
                    raise RuntimeError(self._late(limit))
                timing.sleep(_SLICE_S)
            return True
        is_over = self._look(0)
        while not is_over:
            if (left := until - clock()) <= 0:
                raise RuntimeError(self._late(limit))
            is_over = self._look(min(left, _SLICE_S))
            timing.sleep(0 if is_over else _YIELD_S)
        if self._error is not None:
            raise self._error
        return True

    def _late(self, limit: timedelta) -> str:
        self._group.look_around()
        transport = self._group.messages
        waits = f"rank {self._ranks[transport.rank]} waits in {self._place}"
        ranks = [self._peer] if self._peer != ANY else transport.peers
        return _late(limit.total_seconds(), f"{waits} for {_named(transport, ranks)}")

    def is_completed(self) -> bool:
        return self.message.is_sent or self._look(0)

    def is_success(self) -> bool:
        return self.ended and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def get_future(self) -> "torch.futures.Future[Any]":
        raise NotImplementedError(f"get_future of a {self.message.kind}: call wait()")


def _late(seconds: float, waits: str) -> str:
    return f"{NAME} process group: Timed out waiting {1000 * seconds:g}ms: {waits}"


def _named(transport: GroupTransport, ranks: Sequence[int]) -> str:
    """Return members, with where they were when they were heard of last."""
    return ", ".join(f"rank {transport.named(rank)}{_last(transport, rank)}" for rank in ranks)


def _lost(transport: GroupTransport, lost: PeerLost) -> str:
    if lost.rank == ANY:
        return str(lost)
    return f"lost rank {transport.named(lost.rank)}: {lost.why}{_last(transport, lost.rank)}"


def _last(transport: GroupTransport, rank: int) -> str:
    place = transport.last_of.get(rank)
    return f" (last heard of in {place})" if place and place.words else " (not heard of yet)"


def _end_groups() -> None:
    for group in [*_groups]:
        group.shutdown()
