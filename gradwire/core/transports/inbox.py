"""The inbox of one rank: messages that have arrived and were not received, lost peers, and the wait for more."""

from array import array
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from gradwire.core.transports.messages import Message, PeerLost, PeerReturned, WaitTimeout
from gradwire.core.transports.timing import SLICE_S

if TYPE_CHECKING:
    from gradwire.core.transports.base import Transport

ANY = -1
NOBODY = 2**16 - 1  # in `arrivals`: a receive has found nothing, see `replayable.py`
STEPS_TAKEN = "steps taken"  # the tag of what ranks compare before they end an epoch
Tags = str | tuple[str, ...]


class Inbox:
    """The messages of one rank, by source and tag, each queue in the order of arrival.

    `gone` are the peers that died or left, and why; `news` is what no `recv` from ANY has raised yet. `over` is a death
    after which nothing comes from anyone. `arrivals` and `replay`: see Transport.
    """

    def __init__(self, owner: "Transport") -> None:
        self._owner = owner
        self._n_peers = owner.world_size - 1
        self._n_arrived = 0
        self.queues: dict[tuple[int, str], deque[Message]] = {}
        # Of the tags that were taken from ANY last, a heap of the first of each queue: there may be many peers.
        self._heads: dict[str, list[tuple[tuple[float, int], int, str]]] = {}
        self.gone: dict[int, str] = {}
        self.news: deque[PeerLost | PeerReturned] = deque()
        self.over: PeerLost | None = None
        self.arrivals = array("H")  # two bytes a message, however long the run
        self.replay: Iterator[int] | None = None

    def put(self, message: Message, sent: float) -> None:
        """Take in a message that was `sent` at that time; called in the order of arrival."""
        self._n_arrived += 1
        message.order = (sent, self._n_arrived)
        key = (message.src, message.tag)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = deque()
        queue.append(message)
        if len(queue) == 1 and message.tag in self._heads:
            heappush(self._heads[message.tag], (message.order, *key))

    def pop(self, src: int, tag: Tags) -> Message | None:
        """Take the first message of `src` (or ANY) with this tag (or one of several); None if there is none."""
        if tag == ():
            raise ValueError("recv needs a tag")
        if src == ANY:
            return self._pop_any((tag,) if isinstance(tag, str) else tag)
        if isinstance(tag, str):
            queue = self.queues.get((src, tag))
        else:
            queues = [queue for wanted in tag if (queue := self.queues.get((src, wanted)))]
            queue = min(queues, key=lambda queue: queue[0].order, default=None)
        if not queue:
            return None
        message = queue.popleft()
        if self._heads:
            self._heads.pop(message.tag, None)
        return message

    def _pop_any(self, tags: tuple[str, ...]) -> Message | None:
        for wanted in tags:
            if wanted not in self._heads:
                heap = [(queue[0].order, *key) for key, queue in self.queues.items() if key[1] == wanted and queue]
                heapify(heap)
                self._heads[wanted] = heap
        heaps = [heap for wanted in tags if (heap := self._heads[wanted])]
        if not heaps:
            return None
        heap = min(heaps)
        _, src, tag = heappop(heap)
        queue = self.queues[src, tag]
        message = queue.popleft()
        if queue:
            heappush(heap, (queue[0].order, src, tag))
        return message

    def lose(self, peer: int, why: str, died: bool) -> None:
        """Note that `peer` is gone."""
        if peer not in self.gone:
            self.gone[peer] = why
            if died:
                self.news.append(PeerLost(peer, why))

    def forget(self, peer: int) -> None:
        """Forget what `peer` has sent, and that it is gone."""
        self.gone.pop(peer, None)
        self.news = deque(news for news in self.news if news.rank != peer)
        self._heads.clear()
        for key in [key for key in self.queues if key[0] == peer]:
            del self.queues[key]

    def next_source(self) -> int:
        """Return the sender of the next message that a receive from ANY takes: ANY, or in a replay a rank."""
        if self.replay is None:
            return ANY
        src = next(self.replay, ANY)
        if src == ANY:
            raise RuntimeError("the run that is replayed had fewer messages")
        return src

    def receive(self, src: int, tag: Tags, timeout: float | None) -> Message | None:
        """Wait for a message, and take it: see `Transport.recv`."""
        owner = self._owner
        limit = owner.timeout if timeout is None else timeout
        remaining, deadline = limit, None
        if timeout == 0 and src != ANY:
            owner._progress(src, 0)
        while (message := self.pop(src, tag)) is None:
            self.check(src, tag)
            if timeout == 0:
                return None
            if deadline is not None:
                remaining = deadline - owner._running()
            else:
                deadline = owner._running() + limit
            if remaining <= 0:
                raise self.overdue(named(tag), src, limit)
            owner._progress(src, min(remaining, SLICE_S))
        return message

    def check(self, src: int, tag: Tags) -> None:
        """Check that a message may yet come. Raises PeerLost, PeerReturned, RunFailed."""
        if self.gone or self.news or self.over or not self._n_peers:
            self.raise_if_gone(src, tag)
        if src != ANY and tag != STEPS_TAKEN and (ended := self.queues.get((src, STEPS_TAKEN))):
            self._owner.compare_steps(ended[0])

    def raise_if_gone(self, src: int, tag: Tags) -> None:
        """Raise the news, if it is ANY that is waited for, or PeerLost if `src` is gone."""
        whom = src
        if src == ANY and self.news:
            news = self.news.popleft()
            if isinstance(news, PeerReturned):
                raise news
            src = news.rank
        elif src == ANY and len(self.gone) == self._n_peers and not self._owner.may_return():
            src = next(iter(self.gone), ANY)
            if src == ANY:
                raise PeerLost(ANY, "there is no other rank", named(tag))
        if src in self.gone:
            raise PeerLost(src, self.gone[src], f"{named(tag)} from rank {src}")
        if self.over:
            from_whom = "anyone" if whom == ANY else f"rank {whom}"
            raise PeerLost(self.over.rank, self.over.why, f"{named(tag)} from {from_whom}")

    def overdue(self, what: str, src: int, limit: float) -> WaitTimeout:
        """Return the error of a wait for `what` from `src` (or ANY) that has reached its limit."""
        ranks = [peer for peer in self._owner.peers if peer not in self.gone] if src == ANY else [src]
        return WaitTimeout(self._owner.rank, limit, what, ranks)


def named(tag: Tags) -> str:
    """Return a tag, or several, as messages for people name them."""
    return repr(tag) if isinstance(tag, str) else " or ".join(map(repr, tag))
