# mypy: disable-error-code="override"
"""The calls of a rank to a process group of processes: a collective, which `run` does, and a message."""

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from gradwire.backend.calls import Call, Collective, Message, Tensors
from gradwire.backend.lines import line_at_work
from gradwire.backend.registration import NAME
from gradwire.backend.transport import GroupTransport, Place
from gradwire.core.records.errors import RunFailed, one_line
from gradwire.core.transports import timing
from gradwire.core.transports.base import ANY
from gradwire.core.transports.messages import PeerLost, WaitTimeout

if TYPE_CHECKING:
    from gradwire.backend.real_group import RealGroup

_SLICE_S = 0.01  # of a wait for a message, between which other threads may send
_YIELD_S = 1e-4  # in which they get the transport


class RealCall(Call):
    """A call to a group of processes."""

    _group: "RealGroup"

    def _note_wait(self, begun: float) -> None:
        """Record that the rank has waited for it since then."""
        if (recorder := self._group.recorder) is not None:
            with recorder.guard:
                recorder.at = self.at
                recorder.add("wait", begun, timing.now(), tag=self.call.kind)


class RealCollective(RealCall):
    """A collective of a group, which `run` does."""

    def __init__(
        self, group: "RealGroup", call: Collective, result: Tensors, limit: timedelta | None, given: Tensors
    ) -> None:
        super().__init__(call, result, call.ranks, given, group.event_name)
        self._group, self._limit, self.at = group, limit, line_at_work()
        self._is_over: threading.Event | None = None  # of a call that another thread runs
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._seen: torch.futures.Future[Any] | None = None
        self._guard = threading.RLock()

    @property
    def collective(self) -> Collective:
        assert isinstance(self.call, Collective)
        return self.call

    def run_later(self) -> None:
        """Let the thread of the group do this rank's part."""
        self._is_over = threading.Event()
        self._group.do_later(self.run)

    def run(self) -> None:
        """Do this rank's part."""
        group, call, transport = self._group, self.collective, self._group.collectives
        place = Place(call.number, call.words, self.at)
        me = f"rank {call.ranks[transport.rank]}"
        with group.turn:
            try:
                transport.timeout = self._limit.total_seconds() if self._limit else transport.timeout
                group.logs[0].begin(place, shows_waits=self._is_over is None)
                transport.enter(place)
                call.run(group.plans, transport, self.at)
                transport.settle()
                transport.check_group()
            except WaitTimeout as late:
                group.look_around()
                waits = f"{me} waits in {place} for {_named(transport, late.ranks)}"
                self._error = RuntimeError(
                    f"{NAME} process group: Timed out waiting {1000 * transport.timeout:g}ms: {waits}"
                )
            except PeerLost as lost:
                self._error = RunFailed(group.failure or f"{me} is in {place}: {_lost(transport, lost)}")
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
        if self._is_over is not None:
            self._is_over.set()
        self._complete()

    def _complete(self) -> None:
        with self._guard:
            if self._future is not None and self.ended and not self._future.done():
                self._future.set_result(None)

    @override
    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._is_over is not None and not self.ended:
            begun = timing.now()
            if not self._is_over.wait(timeout.total_seconds() if timeout else None):
                late = f"{self.call.words} at {self.at}"
                raise RuntimeError(_late(timeout.total_seconds() if timeout else 0.0, late))
            self._note_wait(begun)
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


class RealMessage(RealCall):
    """A message that is sent, or a receive."""

    def __init__(self, group: "RealGroup", call: Message, tensors: Tensors, limit: timedelta | None) -> None:
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
                group.logs[1].begin(self._place, shows_waits=False)
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
        self._group.logs[1].begin(self._place, shows_waits=False)
        try:
            found = transport.recv(self._peer, str(call.tag), 0)
        except PeerLost as lost:
            me = f"rank {self._ranks[transport.rank]}"
            self._error = RunFailed(self._group.failure or f"{me} is in {self._place}: {_lost(transport, lost)}")
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
        is_over, begun = self._look(0), timing.now()
        while not is_over:
            if (left := until - clock()) <= 0:
                raise RuntimeError(self._late(limit))
            is_over = self._look(min(left, _SLICE_S))
            timing.sleep(0 if is_over else _YIELD_S)
        self._note_wait(begun)
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
