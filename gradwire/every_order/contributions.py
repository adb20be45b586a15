"""Checks an all-reduce by running it on sets of contributors in place of numbers: `check_all_reduce`.

Each element of a rank's vector begins as the set of that rank alone. A set is an int64: two bits for each rank say how
often it is in it, and the bits above are the sum of the numbers of the elements that were added. Vector clocks
order the events (Fidge, 1988; Mattern, 1989): memory that is overwritten too early is found even where, this time, its
reader was quick.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import torch
from greenlet import getcurrent, greenlet
from typing_extensions import override

from gradwire.core.transports.base import Message, Transport, Work
from gradwire.core.transports.messages import as_vector

if TYPE_CHECKING:
    from strategies.collectives import AllReduce

MOST_RANKS = 24  # whose sets leave bits for the numbers of elements


class _Fault(Exception):
    pass


def check_all_reduce(all_reduce: "AllReduce", N: int, length: int) -> str | None:
    """Return the first fault of all_reduce(vector, transport, n) on N ranks, by rank and round; None: it has none.

    All ranks are to end with every contribution once in each element. No contribution is added twice, nothing is sent
    that has not come, no memory is overwritten before its receiver has read it, and no rank returns before.
    Round 1 of a rank ends when its second message comes, and so on.
    """
    if not 1 <= N <= MOST_RANKS:
        raise ValueError(f"{N} ranks: must be from 1 to {MOST_RANKS}")
    if length > (most := (1 << 63 - 2 * N) // N - 1):
        raise ValueError(f"length {length}: the numbers of so many elements need more bits; take at most {most}")
    ranks: list[_Rank] = []
    ranks += [_Rank(rank, N, length, ranks) for rank in range(N)]
    try:
        while waiting := [rank for rank in ranks if not rank.coroutine.dead]:
            able = [rank for rank in waiting if rank.is_able()]
            for rank in able:
                rank.coroutine.switch(all_reduce)
            if not able:  # first whoever waits for one that has ended
                stuck = min(waiting, key=lambda rank: not ranks[rank.source].coroutine.dead)
                stuck.fail(f"waits for {stuck.wanted} rank {stuck.source}, which never comes")
        for rank in ranks:
            for (src, tag), messages in rank.inbox.items():
                if messages:
                    rank.fail(f"has ended without the {tag!r} that rank {src} sent in round {messages[0].round}")
    except _Fault as fault:
        return f"N = {N}, length {length}: {fault}"
    return None


class _Sent(Work):
    """A message, as its sender sees it. `read`: the clock of its reader when it had read it."""

    def __init__(self, sender: "_Rank", dst: int, vector: torch.Tensor, n: float) -> None:
        self.sender, self.dst, self.vector, self.n = sender, dst, vector, n
        self.now, self.was = vector.numpy(), vector.numpy().tobytes()
        self.round, self.clock = sender.received + 1, sender.tick()
        self.read: list[int] = []

    @property
    @override
    def done(self) -> bool:
        self.sender.look()
        self.sender.learn(self.read)
        return bool(self.read)

    @override
    def wait(self) -> None:
        self.sender.wait_until(lambda: bool(self.read), self.dst, "the release by")
        self.sender.learn(self.read)


class _Rank:
    """The methods of a rank's `Transport` that an all-reduce calls."""

    def __init__(self, rank: int, N: int, length: int, ranks: list["_Rank"]) -> None:
        self.rank, self.world_size, self.ranks, self.received = rank, N, ranks, 0
        self.peers = [peer for peer in range(N) if peer != rank]
        self.clock = [0] * N
        self.inbox: defaultdict[tuple[int, str], deque[_Sent]] = defaultdict(deque)
        self.unread: list[_Sent] = []  # of this rank's memory, as far as it knows
        self.memory: dict[int, torch.Tensor] = {}
        self.numbers = np.arange(1, length + 1)  # of the elements
        self.vector = self.allocate(length).copy_(torch.from_numpy((self.numbers << 2 * N) + 4**rank))
        self.is_able: Callable[[], bool] = lambda: True
        self.source, self.wanted = rank, ""
        self.coroutine = greenlet(self.be)

    def be(self, all_reduce: "AllReduce") -> None:
        """Run on this rank. Raises _Fault."""
        try:
            n = all_reduce(self.vector, cast(Transport, self), 4**self.rank)
        except _Fault:
            raise
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
        self.look()
        for sent in self.unread:
            self.fail(f"returns before rank {sent.dst} has read what it sent in round {sent.round}")
        for k in range(self.world_size):
            self.refuse(self.vector.numpy() & 1 << 2 * k == 0, self.vector, f"ends without rank {k}'s contribution")
        if n != (4**self.world_size - 1) // 3:
            self.fail("returns another n than the sum of all")

    # Called by an all-reduce, as `Transport`'s

    def allocate(self, numel: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        vector = torch.zeros(numel, dtype=dtype)
        self.memory[vector.untyped_storage().data_ptr()] = vector
        return vector

    def isend(self, value: torch.Tensor, dst: int, tag: str, n: float = 0) -> Work:
        self.look()
        if dst not in self.peers:
            self.fail(f"sends to rank {dst}, which is no other of the {self.world_size}", self.received + 1)
        vector = as_vector(value)
        self.check(vector, f"sends to rank {dst}", self.received + 1)
        in_place = vector.untyped_storage().data_ptr() in self.memory
        sent = _Sent(self, dst, vector if in_place else vector.clone(), n)
        self.unread += [sent] if in_place else []
        self.ranks[dst].inbox[self.rank, tag].append(sent)
        return sent

    def recv(self, src: int, tag: str) -> Message:
        messages = self.inbox[src, tag]
        self.wait_until(lambda: bool(messages), src, f"{tag!r} of")
        sent = messages.popleft()
        self.learn(sent.clock)
        self.received += 1
        vector = torch.from_numpy(np.frombuffer(sent.was, np.int64).copy())

        def release() -> None:
            self.refuse(
                vector.numpy() != np.frombuffer(sent.was, np.int64), vector, f"writes into what rank {src} sent"
            )
            vector.zero_()  # so that a later reader gets nothing
            sent.read = self.tick()

        return Message(src, tag, vector, None, vector.nbytes, sent.n, release, _receiver=self)

    def _note(self, message: Message, t0: float) -> None: ...

    def _synchronize(self) -> None: ...

    # The order of events

    def tick(self) -> list[int]:
        """Count an event of this rank; return its clock."""
        self.clock[self.rank] += 1
        return [*self.clock]

    def learn(self, clock: list[int]) -> None:
        """Note that all until this clock has happened."""
        self.clock = [*map(max, self.clock, clock)] if clock else self.clock

    def wait_until(self, is_able: Callable[[], bool], source: int, wanted: str) -> None:
        """Let other ranks run until something of rank `source` is there. Raises _Fault."""
        self.look()
        if source not in self.peers:
            self.fail(f"waits for {wanted} rank {source}, which is no other of the {self.world_size}")
        self.is_able, self.source, self.wanted = is_able, source, wanted
        while not is_able():
            cast(Any, getcurrent().parent).switch()

    # Faults

    def look(self) -> None:
        """Check this rank's changes since its last call. Raises _Fault."""
        self.unread = [sent for sent in self.unread if not sent.read or self.clock[sent.dst] < sent.read[sent.dst]]
        for sent in self.unread:
            if sent.now.tobytes() != sent.was:
                changed = sent.now != np.frombuffer(sent.was, np.int64)
                self.refuse(changed, sent.vector, f"overwrites what rank {sent.dst} may not have read")
        self.check(self.vector, "has", 0)

    def check(self, vector: torch.Tensor, does: str, round: int) -> None:
        """Check that sets are of the elements where they are, and have each rank once at most. Raises _Fault."""
        found, N, first = vector.numpy(), self.world_size, self.first(vector)
        bits = found & 4**N - 1
        twice = bits & 2 * (4**N - 1) // 3
        k = (int(twice.max(initial=0)).bit_length() - 1) // 2
        self.refuse(twice != 0, vector, f"{does} rank {k}'s contribution more than once", round)
        self.refuse(bits == 0, vector, f"{does} what has not come", round)
        if first is not None:
            moved = found >> 2 * N != np.bitwise_count(bits) * self.numbers[first : first + len(found)]
            self.refuse(moved, vector, f"{does} contributions to other elements", round)

    def first(self, vector: torch.Tensor) -> int | None:
        """Return which element of this rank's vector is the first of another; None: it lies elsewhere."""
        within = vector.untyped_storage().data_ptr() == self.vector.untyped_storage().data_ptr()
        return int(vector.storage_offset()) if within else None

    def refuse(self, wrong: np.ndarray, vector: torch.Tensor, what: str, round: int = 0) -> None:
        """Raise _Fault if some elements of a vector are wrong."""
        if wrong.any():
            first, where = self.first(vector), np.flatnonzero(wrong)
            of = "" if first is None else f", elements {first + where[0]} to {first + where[-1]}"
            self.fail(f"{what}{of}", round)

    def fail(self, what: str, round: int = 0) -> NoReturn:
        """Raise _Fault, in the round of the last message that came if not in another."""
        raise _Fault(f"rank {self.rank}, round {round or max(1, self.received)}: {what}")
