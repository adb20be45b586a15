"""AD-PSGD: exchanges between pairs of neighbours on a ring, in which no rank waits for the slowest.

(Lian et al., 2018, arXiv 1710.06952.) Even ranks are active, odd ones passive, so no two wait for each other; with odd
N the ranks N - 1 and 0 are both even, and the edge between them stays unused. An active rank i, after each of its
updates:

    sends x_i to a random passive neighbour j, and computes its next gradient g_i on the same x_i meanwhile
    takes the answer x_j;   x_i <- (x_i + x_j) / 2;   x_i <- optimizer(x_i, g_i)

and the passive one answers at once, also while it computes: it sends its x_j, then x_j <- (x_j + x_i) / 2. Both end
with the same vector, and the sum of all x is kept.

While j computes, its backward pass still reads the parameters that it began with, so the averaged x_j is a vector of
its own; at its next step x_j <- optimizer(x_j, g_j), and the parameters become that. A passive rank looks for requests
when the backward pass has finished the gradient of a parameter, and before and after each step. One thread does all
that is done with x_j, so it needs no lock; the paper has a second one for the exchanges.

An epoch ends when all ranks together have its samples: each tells rank 0 of its steps, and rank 0 tells all when it is
over. Then the active ranks take their last answers, and when all have, the passive ones stop answering. The others go
on without a rank that has died: its partner exchanges with another, or not at all. Rank 0 must not die: see `Living`.
The learning rate's schedule counts the samples of all: rank 0 knows them; the others, until the epoch ends, take all
for as fast as themselves.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.traits import SURVIVED, Cost, Footprint, Traffic, Traits, Weight
from gradwire.core.transports.base import Message, Work
from strategies.living import ROOT, Living, SharedEpoch
from strategies.local_models.drifting import Drifting

REQUEST, ANSWER = "average", "averaged"


@dataclass(kw_only=True)
class ADPSGD(Drifting):
    """Every other rank averages its model with one neighbour at a time, and no rank waits for the slowest (AD-PSGD).

    All ranks but rank 0 may die, and the others carry on.
    """

    traits = Traits(asynchronous=True, agree=False, punctual=False, deaths=SURVIVED)

    def cost(self, kind: str | None = None) -> Cost:
        """A request of each active rank that has a neighbour, its answer, and each rank's word to rank 0."""
        return Cost(worker=Traffic("(2 min(ceil(N / 2), N - 1) + N - 1) / N", "2 min(ceil(N / 2), N - 1) P / N"))

    def memory(self, role: str) -> Footprint:
        """Of a passive rank: the mean, x apart, and an answer to each neighbour."""
        return Footprint(other="(1 + min(1, N - 1) + min(2, N - 1)) P")

    def check(self, run: RunSize) -> None:
        """Every rank takes messages in an order of its own, which no record has."""
        if run.replayed:
            raise UsageError(f"--replay: with {self.name} ranks take messages in an order of their own; leave it out")

    def weight(self, workers: int) -> Weight | str:
        """No exchange changes the sum of all x_k, and the model is their mean."""
        return Weight(1, 1 / workers)

    def setup(self) -> None:
        """Find the partners. Passive: make a vector for x apart from the parameters, and one for each answer."""
        super().setup()
        self.living = Living(self.transport, self.updater)
        self.epoch = SharedEpoch(self.transport, self.updater, self.living, REQUEST)
        k, N = self.transport.rank, self.transport.world_size
        self.is_active = k % 2 == 0
        self.partners = [j for j in sorted({(k - 1) % N, (k + 1) % N}) if j % 2 != k % 2]
        self.random = random.Random(f"{self.seed} {k}")
        self.asked: tuple[int, Work] | None = None  # active: whose answer is to come; until then x does not change
        if not self.is_active:
            x = self.replica.x
            self.apart = torch.empty_like(x)
            self.answers = {j: self.transport.allocate(x.numel(), x.dtype) for j in self.partners}
            self.sent: dict[int, Work] = {}
        if k == ROOT or not self.is_active:
            self.replica.on_gradient(lambda i: self.attend())

    def join(self, resumed: bool) -> None:
        """Begin where rank 0 is: with its epoch, samples and steps, and all of the module's state."""
        self.living.begin(self.replica)
        if not self.is_active:
            self.apart.copy_(self.replica.x)

    # A step

    def begin_step(self, n_samples: int) -> None:
        """Answer the requests that have come."""
        self.attend()

    def step(self, n_samples: int) -> None:
        """x_k <- the average with a neighbour; x_k <- optimizer(x_k, g_k); offer the new x_k."""
        g = self.replica.collect()
        self.mix()
        known = 1 if self.transport.rank == ROOT else self.transport.world_size  # the others count theirs for all
        self.updater.step(g, n_samples * known)
        self.replica.zero_grad()
        self.offer()
        self.epoch.count(n_samples)
        self.attend()

    def mix(self) -> None:
        """Active: x_i <- (x_i + x_j) / 2, when j has answered. Passive: x_j <- the vector apart."""
        if self.is_active:
            self.take_answer()
        else:
            self.replica.x.copy_(self.apart)

    def take_answer(self) -> None:
        """x_i <- (x_i + x_j) / 2, if i has asked j, and j is alive."""
        if self.asked is None:
            return
        (partner, request), self.asked = self.asked, None
        with self.living.tolerate_death_of(partner), self.transport.recv(partner, ANSWER) as answer:
            request.wait()
            self.replica.x.add_(answer.vector).div_(2)

    def offer(self) -> None:
        """Active: send x_i to a random neighbour that is alive, if there is one. Passive: the vector apart <- x_j."""
        if not self.is_active:
            self.apart.copy_(self.replica.x)
            return
        while partners := [j for j in self.partners if j in self.living.alive]:
            partner = self.random.choice(partners)
            with self.living.tolerate_death_of(partner):
                self.asked = partner, self.transport.isend(self.replica.x, partner, REQUEST)
                return

    def answer(self, request: Message) -> None:
        """Passive: send x_j; x_j <- (x_j + x_i) / 2. If i is dead, x_j stays."""
        i = request.src
        if i in self.sent:
            self.sent[i].wait()  # i has read it before it asked again
        with request, self.living.tolerate_death_of(i):
            self.sent[i] = self.transport.isend(self.answers[i].copy_(self.apart), i, ANSWER)
            self.apart.add_(request.vector).div_(2)

    def attend(self) -> None:
        """Answer all requests that have come."""
        for request in self.epoch.requests():
            self.answer(request)

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Yield this rank's own steps, until the epoch is over, which it may be at once in a run that is resumed."""
        self.epoch.is_over = False
        self.attend()
        while not self.epoch.is_over:
            yield self.updater.version

    def finish(self) -> None:
        """Take the last answer, and answer until all have theirs. Average the buffers over the ranks that are alive."""
        if self.is_active:
            self.take_answer()
        for request in self.epoch.end():
            self.answer(request)
        if not self.is_active:
            self.replica.x.copy_(self.apart)
        super().finish()

    def average(self, vector: torch.Tensor, what: str) -> None:
        """Replace `vector` [n] by the mean over the ranks that are alive. Raises PeerLost if rank 0 is lost."""
        self.living.average(vector, what)
