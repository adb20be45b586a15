"""Decoupled DiLoCo: learners train models of their own and never wait; a syncer merges fragments of them by a quorum.

x is cut into P fragments, p = 0 .. P - 1, which take turns. Rank 0, the syncer, holds X.

    learner m, every H steps:  sends x_m,p, its samples and its steps, and computes on
    syncer:                    merges p when `quorum` learners have sent it, or `grace` seconds after the first has
                               w_m ~ samples_m samples_m / steps_m, normalised, of those who have sent it
                               X_p <- Nesterov(X_p, X_p - sum of w_m x_m,p), and sends X_p to them
    learner m, when X_p is there, after a step:  x_m,p <- X_p

(Decoupled DiLoCo, 2026, arXiv 2604.21428.) samples_m and steps_m are those since m has sent p before. Steps between the
sending and the coming of X_p are lost for p, and counted. With `wait` learners wait for X_p: with a quorum of all and
one fragment that is DiLoCo.

Different from the paper: there the grace time adapts itself, and X_p goes to all learners; here it goes to those whose
x_m,p it holds. So no more than two of a fragment are on the way to or from a learner: p is merged at the latest when
one of those who have sent it sends it again, and then m waits for the X_p before, which has left by then: m waits for
the network, not for other learners.

- A learner that dies takes along what it has sent and is not merged; the quorum is of those that live. One that is
  started again begins with X.
- An epoch ends when the merged samples are those of the training set. The syncer tells all; learners send all
  fragments once more, these are merged, and all begin the next epoch, or end the run, with the same X: nothing is lost.
- A checkpoint is X, with its momentum: what learners have computed since, or sent, is lost with a run that is resumed.
"""

from dataclasses import dataclass, field

import torch

from records.errors import UsageError, between
from strategies.common.base import RunSize
from strategies.common.served import Served
from strategies.common.traits import RETURNING, Cost, Footprint, Traffic, Traits
from strategies.common.workers import SERVER
from transports.base import Message
from transports.noted import receive_noted

OVER = "over"
_AT_ONCE = 1e-6  # seconds: what has come is taken first, also after the grace time


@dataclass
class _Learner:
    """What the syncer knows of a learner."""

    sent_at: list[tuple[int, int]]  # its steps and samples when it sent each fragment
    samples: int = 0
    turns: int = 0  # fragments that it has sent
    told: bool = False  # that the epoch is over


@dataclass
class _Sent:
    """What learners have sent of a fragment since its last merge, with their weights."""

    begun: float  # when the first came
    pushes: dict[int, tuple[Message, float]] = field(default_factory=dict)


@dataclass(kw_only=True)
class DecoupledDiLoCo(Served):
    """Learners train apart without waiting; a syncer merges each fragment by a quorum, with outer momentum.

    The staleness of a push: how many merges the syncer has made since it sent the learner a fragment.
    """

    local_steps: int = 4
    """H: steps of a learner between two fragments that it sends."""
    fragments: int = 2
    """P: the parts of the parameters, of which one is sent at a time."""
    quorum: int | None = None
    """K: learners whose fragment is waited for before it is merged. Default: all that live."""
    grace: float = 1.0
    """Seconds after which a fragment is merged with fewer, from when the first has sent it."""
    wait: bool = False
    """Let a learner wait until the fragment that it has sent is merged."""
    outer_lr: float = 0.7
    """Learning rate of the outer optimizer, SGD with Nesterov momentum."""
    outer_momentum: float = 0.9
    """Momentum of the outer optimizer."""

    traits = Traits(asynchronous=True, ranks=(2, None), deaths=RETURNING)  # what is sent is no gradient: no codecs

    def cost(self, kind: str | None = None) -> Cost:
        """Every local_steps steps a fragment, beside it the number of steps; a fragment comes back."""
        each = "P / fragments / local_steps"
        server = Traffic("(N - 1) / local_steps", f"(N - 1) {each}")
        return Cost(worker=Traffic("2 / local_steps", each), server=server)

    def memory(self, role: str) -> Footprint:
        """The syncer has the outer momentum, the fragments of those who have sent one, and their mean."""
        if role == "worker":
            return super().memory(role)
        momentum = "P" if self.outer_momentum else "0"
        return Footprint(gradients="0", optimizer_state=momentum, other="N P / fragments")

    def check(self, run: RunSize) -> None:
        """An epoch must have a round, a quorum learners."""
        between(self, "local_steps", 1, run.steps_per_epoch, "the steps of an epoch")
        between(self, "fragments", 1)
        if self.quorum is not None:
            between(self, "quorum", 1, run.workers, "all learners")
        for option, high in (("grace", 1e6), ("outer_lr", 1e30), ("outer_momentum", 1.0)):
            if not 0 <= (value := getattr(self, option)) < high:
                raise UsageError(f"--{option} {value}: must be at least 0 and less than {high:g}")

    def setup(self) -> None:
        """Cut x. Syncer: make the outer optimizer."""
        super().setup()
        self.cut = self.replica.x.tensor_split(self.fragments)
        self.tags = tuple(f"fragment {p}" for p in range(self.fragments))
        if self.is_server:
            self.X = [torch.nn.Parameter(part) for part in self.cut]
            momentum = self.outer_momentum
            self.outer = torch.optim.SGD(self.X, lr=self.outer_lr, momentum=momentum, nesterov=momentum > 0)
            self.keep("outer", self.outer)
            self.learners: dict[int, _Learner] = {}
            self.sent: dict[int, _Sent] = {}  # by fragment, the first begun first
            self.workers.on_sent_x = self.begin_with
            self.workers.patience, self.workers.on_silence = self.time_left, self.merge_first

    def join(self, resumed: bool) -> None:
        """All begin with X."""
        super().join(resumed)
        self.begin()

    # Learner m

    def begin(self) -> None:
        """All that is here is X, and nothing has been sent."""
        self.turns = self.round = self.n_taken = 0  # fragments sent; since the last: steps, samples
        self.sent_at = [self.steps] * self.fragments
        self.owed = [0] * self.fragments  # how often X_p is to come back
        self.told = False  # that the epoch is over

    def step(self, n_samples: int) -> None:
        """x_m <- optimizer(x_m, g_m); send a fragment after H steps; take one that has come back."""
        self.descent.step(self.replica.collect(), n_samples)
        self.replica.zero_grad()
        self.steps += 1
        self.round += 1
        self.n_taken += n_samples
        if self.round == self.local_steps:
            self.push()
        if not self.wait and (message := receive_noted(self.transport, SERVER, (*self.tags, OVER), 0)):
            self.take(message)

    def push(self, tag: str = "push") -> None:
        """Send x_m,p whose turn it is. With `wait`: x_m,p <- X_p."""
        p = self.turns % self.fragments
        x_p = self.cut[p].clone()
        while tag == "push" and self.owed[p] > 1:
            self.take(self.transport.recv(SERVER, self.tags[p]))
        self.transport.isend(None, SERVER, "steps", n=self.steps)
        self.transport.isend(x_p, SERVER, tag, n=self.n_taken)
        self.sent_at[p] = self.steps
        self.owed[p] += tag == "push"
        self.turns, self.round, self.n_taken = self.turns + 1, 0, 0
        while self.wait and self.owed[p]:
            self.take(self.transport.recv(SERVER, self.tags[p]))

    def take(self, message: Message) -> None:
        """x_m,p <- X_p, or learn that the epoch is over. The number beside counts the samples of all learners."""
        self.descent.samples = self.descent.processed = message.n
        self.over = self.over or message.n >= self.descent.until
        if message.tag == OVER:
            self.told = True
        else:
            p = self.tags.index(message.tag)
            self.owed[p] -= 1
            message.copy_to(self.cut[p])

    # Syncer

    def begin_with(self, k: int) -> None:
        """Learner k has X, and has sent nothing."""
        self.learners[k] = _Learner([(self.workers.steps[k], 0)] * self.fragments)

    def serve(self) -> None:
        """Merge what learners send, until all have sent the last of the epoch and said goodbye."""
        for message in self.workers.messages("steps", "push", "rest", on_departure=self.leave_out_the_dead):
            if message.tag == "steps":
                self.workers.steps[message.src] = message.n
            else:
                self.add(message)
            self.tell()

    def add(self, push: Message) -> None:
        """Take x_m,p, and merge p if it is time to."""
        m = self.learners[push.src]
        p = m.turns % self.fragments
        m.turns += 1
        m.samples += push.n
        then, m.sent_at[p] = m.sent_at[p], (self.workers.steps[push.src], m.samples)
        steps, samples = m.sent_at[p][0] - then[0], m.sent_at[p][1] - then[1]
        if p in self.sent and push.src in self.sent[p].pushes:
            self.merge(p)
        sent = self.sent.setdefault(p, _Sent(self.transport.now()))
        sent.pushes[push.src] = push.log_receipt(), samples * samples / steps
        self.merge_by_quorum(p)

    def merge_by_quorum(self, p: int) -> None:
        """Merge p if K learners have sent it, or all that may."""
        able = len(self.workers.present | self.sent[p].pushes.keys())
        if len(self.sent[p].pushes) >= min(self.quorum or able, able):
            self.merge(p)

    def merge_first(self) -> None:
        """Merge the fragment that learners have sent first."""
        self.merge(next(iter(self.sent)))

    def time_left(self) -> float | None:
        """Return the seconds until the grace time of that fragment has passed; None if there is none."""
        first = next(iter(self.sent.values()), None)
        return None if first is None else max(first.begun + self.grace - self.transport.now(), _AT_ONCE)

    def merge(self, p: int) -> None:
        """X_p <- Nesterov(X_p, X_p - sum w_m x_m,p); X_p to those who have sent p."""
        pushes, X_p = dict(sorted(self.sent.pop(p).pushes.items())), self.X[p]
        total = sum(weight for _, weight in pushes.values())
        with self.transport.recorder.phase("update", 1 / self.fragments):
            X_p.grad = X_p.detach().clone()
            for push, weight in pushes.values():
                X_p.grad.sub_(push.vector, alpha=weight / total)
            self.outer.step()
            X_p.grad = None
        for push, _ in pushes.values():
            if push.n:
                self.workers.record_applied(push)
            push.release()
        self.descent.count(sum(push.n for push, _ in pushes.values()))
        for k, (push, _) in pushes.items():
            if push.tag == "push":
                self.workers.version_read[k] = self.descent.version
                self.workers.send(self.cut[p].clone(), k, self.tags[p], n=self.descent.samples)

    def leave_out_the_dead(self) -> None:
        """Drop what they have sent; merge what the others have, if that is enough now."""
        for p in list(self.sent):
            pushes = self.sent[p].pushes
            for k in pushes.keys() - self.workers.alive:
                self.workers.drop(pushes.pop(k)[0])
            if pushes:
                self.merge_by_quorum(p)
            else:
                del self.sent[p]
        self.tell()

    def tell(self, ended: bool = False) -> None:
        """Tell the learners that the epoch is over, when it has its samples or has `ended`."""
        if self.descent.is_over or ended:
            for k in sorted(self.workers.alive):
                if not self.learners[k].told:
                    self.learners[k].told = True
                    self.workers.send(None, k, OVER, n=self.descent.samples)

    # Both

    def finish(self) -> None:
        """Learner: send what is unsent of each fragment, and take what comes back. All get X."""
        if self.is_server:
            self.tell(ended=True)
        else:
            while self.sent_at[self.turns % self.fragments] < self.steps:
                self.push("rest")
            self.transport.isend(None, SERVER, "goodbye")
            for p in range(self.fragments):
                while self.owed[p]:
                    self.take(self.transport.recv(SERVER, self.tags[p]))
            if not self.told:
                self.take(self.transport.recv(SERVER, OVER))
        self.end_epoch()
        for k in self.workers.alive if self.is_server else ():
            self.begin_with(k)
        self.begin()
