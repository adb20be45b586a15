"""Decoupled DiLoCo: learners train models of their own and never wait; a syncer merges fragments of them by a quorum.

x is cut into P fragments, p = 0 .. P - 1, which take turns. Rank 0, the syncer, holds X.

    learner m, every H steps:  sends x_m,p, its samples and its steps, and computes on
    syncer:                    merges p when K learners have sent it, or `grace` seconds after the first has:
                               w_m ~ samples_m samples_m / steps_m, normalised over those that sent it
                               X_p <- Nesterov(X_p, X_p - sum of w_m x_m,p), and sends X_p to them
    learner m, when X_p comes: x_m,p <- X_p

(Decoupled DiLoCo, 2026, arXiv 2604.21428.) samples_m and steps_m are those since m sent p before. What m does to p
between sending x_m,p and taking X_p is lost. With `wait` it waits for X_p: with K all and P = 1 that is DiLoCo.

Different from the paper: there the grace time adapts itself and X_p goes to all learners. Here it goes to those that
have sent p, and p is merged too when one of them sends it again. So no more than two of x_m,p and X_p are on the way:
before the third, m waits until the network has brought the first X_p, and never for another learner.

- A learner that dies takes along what it has sent and is not merged yet; a quorum is of those that live. One that is
  started again begins with X.
- An epoch ends when the merged samples are those of the training set: the syncer tells all learners, and these send
  what is unsent of every fragment. All begin the next epoch with the same X, or end the run: nothing is lost.
- A checkpoint has X and its momentum. What learners have computed and sent since is lost to a run that is resumed.
"""

from dataclasses import dataclass

import torch

from gradwire.core.records.errors import between
from gradwire.core.records.options import option
from gradwire.core.strategy.factories import outer_sgd
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.traits import RETURNING, Cost, Footprint, Traffic, Traits, Weight
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Message
from gradwire.core.transports.replayable import receive_replayable
from strategies.asynchronous_server.quorum import OVER, PUSH, Quorum, Sent
from strategies.asynchronous_server.turns import Turns


@dataclass(kw_only=True)
class DecoupledDiLoCo(Served):
    """Learners train apart without waiting; a syncer merges each fragment by a quorum, with outer momentum.

    The staleness of a push: how many merges the syncer has made since it sent the learner a fragment.
    """

    local_steps: int = 4
    """H: steps of a learner between two fragments that it sends."""
    fragments: int = option(2, least=1)
    """P: the parts of the parameters, of which one is sent at a time."""
    quorum: int | None = None
    """K: learners that must have sent a fragment before it is merged. Default: all that live."""
    grace: float = option(1.0, below=1e6)
    """Seconds after the first of them has sent it when a fragment is merged with fewer."""
    wait: bool = False
    """Let a learner wait until the fragment that it has sent is merged."""
    outer_lr: float = option(0.7, below=1e30)
    """Learning rate of the outer optimizer, SGD with Nesterov momentum."""
    outer_momentum: float = option(0.9, below=1.0)
    """Momentum of the outer optimizer."""

    # It sends no gradients: no codecs.
    traits = Traits(asynchronous=True, ranks=(2, None), deaths=RETURNING)

    def cost(self, kind: str | None = None) -> Cost:
        """Every local_steps steps a fragment, with the number of steps before it; a fragment comes back."""
        each = "P / fragments / local_steps"
        server = Traffic("(N - 1) / local_steps", f"(N - 1) {each}")
        return Cost(worker=Traffic("2 / local_steps", each), server=server)

    def memory(self, role: str) -> Footprint:
        """A learner: a fragment that goes and one that comes. The syncer: those that it merges, and x as sent."""
        if role == "worker":
            return Footprint(other="2 P / fragments")
        momentum = "P" if self.outer_momentum else "0"
        return Footprint(gradients="0", optimizer_state=momentum, other="(N - 1) (P + P / fragments)")

    def check(self, run: RunSize) -> None:
        """An epoch must have a fragment sent; a quorum is of the learners."""
        between(self, "local_steps", 1, run.steps_per_epoch, "the steps of an epoch")
        if self.quorum is not None:
            between(self, "quorum", 1, run.workers, "the learners")

    @property
    def period(self) -> int:
        """A turn of each fragment."""
        return self.local_steps * self.fragments

    def weight(self, workers: int) -> Weight | str:
        """Not known: see above."""
        return "what a learner does between sending a fragment and taking it is lost"

    def setup(self) -> None:
        """Cut x. Syncer: make the outer optimizer."""
        super().setup()
        self.x = self.replica.x.tensor_split(self.fragments)
        self.tags = tuple(f"fragment {p}" for p in range(self.fragments))
        self.turns = Turns(self.fragments)
        self.told = False  # that the epoch is over
        if self.is_server:
            self.X = [torch.nn.Parameter(x_p) for x_p in self.x]
            self.outer = outer_sgd(self.X, self.outer_lr, self.outer_momentum)
            self.keep("outer", self.outer)
            how = self.fragments, self.quorum, self.grace, self.merge, self.reply
            self.gathered = Quorum(self.workers, self.transport, self.updater, *how)

    def join(self, resumed: bool) -> None:
        """All begin with X."""
        super().join(resumed)
        self.turns.begin(self.steps)

    # Learner m

    def step(self, n_samples: int) -> None:
        """x_m <- optimizer(x_m, g_m); every H steps, send x_m,p; x_m,p <- X_p, if one has come."""
        self.updater.step(self.replica.collect(), n_samples)
        self.replica.zero_grad()
        self.steps += 1
        self.turns.count(n_samples)
        if self.turns.steps_since == self.local_steps:
            self.push()
        if not self.wait and (message := receive_replayable(self.transport, SERVER, (*self.tags, OVER), 0)):
            self.take(message)

    def push(self, tag: str = PUSH) -> None:
        """Send x_m,p, its samples and its steps, p being the fragment whose turn it is. With `wait`, take X_p."""
        p, n = self.turns.p, self.turns.samples_since
        x_p = self.x[p].clone()
        self.take_owed(p, but=1)
        self.transport.isend(None, SERVER, "steps", n=self.steps)
        self.transport.isend(x_p, SERVER, tag, n=n)
        self.turns.end(comes_back=tag == PUSH)
        if self.wait:
            self.take_owed(p)

    def take_owed(self, p: int, but: int = 0) -> None:
        """Wait until no more than `but` X_p are to come."""
        while self.turns.owed[p] > but:
            self.take(self.transport.recv(SERVER, self.tags[p]))

    def take(self, message: Message) -> None:
        """x_m,p <- X_p, or learn that the epoch is over. The number beside counts the samples of all learners."""
        self.updater.samples = self.updater.processed = message.n
        self.over = self.over or message.n >= self.updater.until
        if message.tag == OVER:
            self.told = True
            return
        p = self.tags.index(message.tag)
        self.turns.owed[p] -= 1
        message.copy_to(self.x[p])

    # Syncer

    def serve(self) -> None:
        """Merge what learners send, until they have sent the last of the epoch and said goodbye."""
        gathered = self.gathered
        for message in self.workers.messages("steps", PUSH, "rest", on_worker_left=gathered.do_without_the_dead):
            if message.tag == "steps":
                self.workers.steps[message.src] = message.n
            else:
                gathered.add(message)

    def merge(self, p: int, sent: dict[int, Sent]) -> None:
        """X_p <- Nesterov(X_p, X_p - sum of w_m x_m,p), w_m ~ samples_m samples_m / steps_m, over those sent."""
        w = {m: push.samples * push.samples / push.steps for m, push in sent.items()}
        total = sum(w.values())
        with self.transport.recorder.phase("update", 1 / self.fragments):
            delta = self.X[p].grad = self.X[p].detach().clone()
            for m, push in sent.items():
                delta.sub_(push.message.vector, alpha=w[m] / total)
            self.outer.step()
            self.X[p].grad = None

    def reply(self, p: int, m: int) -> None:
        """Send X_p to learner m."""
        self.workers.send(self.x[p].clone(), m, self.tags[p], n=self.updater.samples)

    # Both

    def finish(self) -> None:
        """Learner: send the rest of each fragment; take the X_p still due. All: end the epoch with X."""
        if self.is_server:
            self.gathered.end_epoch()
        else:
            self.send_rest()
        self.end_epoch()
        self.turns.begin(self.steps)
        self.told = False
        for k in self.workers.alive if self.is_server else ():
            self.gathered.begin(k)

    def send_rest(self) -> None:
        """Learner: send the rest of each fragment; take each X_p still due, and the end of the epoch."""
        while self.turns.is_unsent:
            self.push("rest")
        self.transport.isend(None, SERVER, "goodbye")
        for p in range(self.fragments):
            self.take_owed(p)
        if not self.told:
            self.take(self.transport.recv(SERVER, OVER))
