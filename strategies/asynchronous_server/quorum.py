"""The pushes of workers that send several parts in turn; the server merges a part when enough workers have sent it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from gradwire.core.strategy.arrivals import Arrivals
from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import Message, Transport

PUSH = "push"  # which is replied to
OVER = "over"  # to workers that wait for nothing: the epoch has its samples
_AT_ONCE = 1e-6  # seconds: messages that have come are taken first, also after the grace time


class Sent(NamedTuple):
    """One push of one part, with the samples and steps that its worker has taken since its push of the part before."""

    message: Message
    samples: int
    steps: int


@dataclass
class _Worker:
    sent_at: list[tuple[int, int]]  # its samples and steps when it sent each part
    samples: int = 0
    turns: int = 0  # parts that it has sent
    told: bool = False  # that the epoch is over


@dataclass
class _Gathered:
    begun: float  # when the first came
    sent: dict[int, Sent] = field(default_factory=dict)


class Quorum:
    """Calls `merge(part, pushes by worker)` when `quorum` workers have sent a part, or all that may.

    None: all. It does so earlier, `grace` seconds after the first has come, and where a worker sends a part again.
    Then it counts the merged pushes; calls `reply(part, worker)` for each. It is for the messages that `workers`
    yields, and waits for none; a replay merges the same.
    """

    def __init__(
        self,
        workers: Arrivals,
        transport: Transport,
        updater: Updater,
        parts: int,
        quorum: int | None,
        grace: float,
        merge: Callable[[int, dict[int, Sent]], None],
        reply: Callable[[int, int], None],
    ) -> None:
        self._workers, self._transport, self._descent = workers, transport, updater
        self._parts, self._quorum, self._grace, self._call, self._reply = parts, quorum, grace, merge, reply
        self._known: dict[int, _Worker] = {}
        self._gathered: dict[int, _Gathered] = {}  # by part, the first begun first
        workers.on_sent_x = self.begin
        workers.patience, workers.on_silence = self._time_left, self._merge_first

    def begin(self, k: int) -> None:
        """Worker k begins with x, and has sent nothing."""
        self._known[k] = _Worker([(0, self._workers.steps[k])] * self._parts)

    def add(self, push: Message) -> None:
        """Take a worker's push of the part whose turn it is; `workers.steps` are those that it has taken."""
        k, worker = push.src, self._known[push.src]
        part, worker.turns, worker.samples = worker.turns % self._parts, worker.turns + 1, worker.samples + push.n
        then, now = worker.sent_at[part], (worker.samples, self._workers.steps[k])
        worker.sent_at[part] = now
        if part in self._gathered and k in self._gathered[part].sent:
            self._merge(part)
        gathered = self._gathered.setdefault(part, _Gathered(self._transport.now()))
        gathered.sent[k] = Sent(push.log_receipt(), now[0] - then[0], now[1] - then[1])
        self._merge_if_enough(part)
        self.tell()

    def do_without_the_dead(self) -> None:
        """Drop the pushes of dead workers, and merge the parts that now have a quorum."""
        for part, gathered in list(self._gathered.items()):
            for k in gathered.sent.keys() - self._workers.alive:
                self._workers.drop(gathered.sent.pop(k).message)
            if gathered.sent:
                self._merge_if_enough(part)
            else:
                del self._gathered[part]
        self.tell()

    def end_epoch(self) -> None:
        """Tell the workers that the epoch has ended: each gets x, for the last part that it was sent is no whole x."""
        self.tell(ended=True)
        for k in self._workers.alive:
            self._workers.version_read[k] = -1

    def tell(self, ended: bool = False) -> None:
        """Tell the workers, each once, that the epoch is over, if it has its samples or has `ended`."""
        for k in sorted(self._workers.alive) if ended or self._descent.is_over else ():
            if not self._known[k].told:
                self._known[k].told = True
                self._workers.send(None, k, OVER, n=self._descent.samples)

    def _merge_if_enough(self, part: int) -> None:
        sent = self._gathered[part].sent
        able = len(self._workers.present | sent.keys())
        if len(sent) >= min(self._quorum or able, able):
            self._merge(part)

    def _merge(self, part: int) -> None:
        sent = dict(sorted(self._gathered.pop(part).sent.items()))
        self._call(part, sent)
        for push, _, _ in sent.values():
            if push.n:  # else its samples came with another part
                self._workers.record_applied(push)
            push.release()
        self._descent.count(sum(push.n for push, _, _ in sent.values()))
        for k, (push, _, _) in sent.items():
            if push.tag == PUSH:
                self._workers.version_read[k] = self._descent.version
                self._reply(part, k)

    def _merge_first(self) -> None:
        self._merge(next(iter(self._gathered)))

    def _time_left(self) -> float | None:
        """Return the seconds until the grace time of the part that was begun first has passed; None: there is none."""
        first = next(iter(self._gathered.values()), None)
        return None if first is None else max(first.begun + self._grace - self._transport.now(), _AT_ONCE)
