"""AD-PSGD, the asynchronous half of `gossip.py`: exchanges between pairs of neighbours on a ring.

(Lian et al., 2018, Asynchronous decentralized parallel stochastic gradient descent, arXiv 1710.06952.) Even ranks are
active, odd ones passive, so no two wait for each other; with odd N the ranks N - 1 and 0 are both even, and the edge
between them stays unused. An active rank i, after each of its updates:

    sends x_i to a random passive neighbour j, and computes its next gradient g_i on the same x_i meanwhile
    takes the answer x_j;   x_i <- (x_i + x_j) / 2;   x_i <- optimizer(x_i, g_i)

and the passive one answers at once, also while it computes: it sends its x_j, then x_j <- (x_j + x_i) / 2. Both end
with the same vector, and the sum of all x is kept. While j computes, its backward pass still reads the parameters that
it began with, so the averaged x_j is a vector of its own; at its next step x_j <- optimizer(x_j, g_j), and the
parameters become that. An active rank waits for one answer, a passive one for nobody.

A passive rank looks for requests whenever the gradient of a parameter is whole, and before and after each step. All
that is done with x_j is done by one thread, so it needs no lock; the paper has a second thread for the exchanges.

An epoch ends when all ranks together have its samples: each tells rank 0 of its steps, and rank 0 tells all when it is
over. Then the active ranks take their last answers, and when all have, the passive ones stop answering. Who dies is
left out, and its partner exchanges with another, or with nobody. Rank 0 may not die: see `Living`. The learning rate's
schedule counts the samples of all: rank 0 knows them; the others, until the epoch ends, take all for as fast as
themselves.
"""

import random
from collections.abc import Iterator

import torch

from strategies.common.base import Strategy
from strategies.common.living import ROOT, Living
from strategies.common.traits import Traffic
from transports.base import ANY, Message, PeerLost, Work

REQUEST, ANSWER = "average", "averaged"
PROGRESS, OVER = "progress", "over"  # to rank 0: the samples of a step; from it: the epoch has its samples
DONE, END = "exchanged", "end of exchanges"  # to rank 0: no answer is outstanding; from it: nor anybody else's
HEARD = (REQUEST, PROGRESS, OVER)


class Exchanges:
    """One rank's part in the exchanges.

    `apart` [n] is a passive rank's averaged x. `asked` is the neighbour whose answer an active one is to take, and the
    message with its x, which is read in place: until then, x does not change.
    """

    traffic = Traffic("(2 min(ceil(N / 2), N - 1) + N - 1) / N", "2 min(ceil(N / 2), N - 1) P / N")

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.replica, self.transport, self.descent = strategy.replica, strategy.transport, strategy.descent
        self.living = Living(self.transport, self.descent)
        k, N = self.transport.rank, self.transport.world_size
        self.is_active = k % 2 == 0
        self.partners = [j for j in sorted({(k - 1) % N, (k + 1) % N}) if j % 2 != k % 2]
        self.random = random.Random(f"{strategy.seed} {k}")
        self.over = False
        self.asked: tuple[int, Work] | None = None
        if not self.is_active:
            x = self.replica.x
            self.apart = torch.empty_like(x)
            self.answers = {j: self.transport.allocate(x.numel(), x.dtype) for j in self.partners}
            self.sent: dict[int, Work] = {}
        if k == ROOT or not self.is_active:
            self.replica.on_gradient(lambda i: self.attend())

    def join(self) -> None:
        """Begin where rank 0 says: with its epoch, samples and steps, and all of the module's state."""
        replica, descent, recorder = self.replica, self.descent, self.transport.recorder
        if self.transport.rank == ROOT:
            self.living.send_all(replica.x, "initial parameters", n=recorder.epoch)
            self.living.send_all(replica.b, "initial buffers", n=descent.samples)
            self.living.send_all(None, "initial step", n=descent.version)
            if (others := replica.others).numel():
                self.living.send_all(others, "initial others")
        else:
            x = self.transport.recv(ROOT, "initial parameters")
            recorder.epoch = x.n
            x.copy_to(replica.x)
            b = self.transport.recv(ROOT, "initial buffers")
            descent.samples = descent.processed = b.n
            b.copy_to(replica.b)
            descent.version = self.transport.recv(ROOT, "initial step").n
            if replica.others.numel():
                with self.transport.recv(ROOT, "initial others") as message:
                    replica.others = message.vector
        if not self.is_active:
            self.apart.copy_(replica.x)

    # A step

    def mix(self) -> None:
        """x <- the average with what has come since the last step: the answer, or the vector apart."""
        if self.is_active:
            self.take_answer()
        else:
            self.replica.x.copy_(self.apart)

    def take_answer(self) -> None:
        """x_i <- (x_i + x_j) / 2, when j has answered; without it if j is dead."""
        if self.asked is None:
            return
        (partner, request), self.asked = self.asked, None
        try:
            with self.transport.recv(partner, ANSWER) as answer:
                request.wait()
                self.replica.x.add_(answer.vector).div_(2)
        except PeerLost:
            self.living.bury(partner)

    def after_step(self, n_samples: int) -> None:
        """Offer the new x, and tell rank 0 of the step."""
        if self.is_active:
            self.ask()
        else:
            self.apart.copy_(self.replica.x)
        if self.transport.rank != ROOT:
            self.transport.isend(None, ROOT, PROGRESS, n=n_samples)
        self.attend()

    def ask(self) -> None:
        """Send x_i to a random neighbour that is alive, if there is one."""
        while partners := [j for j in self.partners if j in self.living.alive]:
            partner = self.random.choice(partners)
            try:
                self.asked = partner, self.transport.isend(self.replica.x, partner, REQUEST)
                return
            except PeerLost:
                self.living.bury(partner)

    def answer(self, request: Message) -> None:
        """Send x_j; x_j <- (x_j + x_i) / 2. Not with the dead."""
        i = request.src
        if i in self.sent:
            self.sent[i].wait()  # i has read it before it asked again
        with request:
            try:
                self.sent[i] = self.transport.isend(self.answers[i].copy_(self.apart), i, ANSWER)
            except PeerLost:
                self.living.bury(i)
                return
            self.apart.add_(request.vector).div_(2)

    # What others send

    def attend(self) -> None:
        """Hear whatever has come. Rank 0: end the epoch when it has its samples."""
        while (message := self.poll()) is not None:
            self.hear(message)
        if self.transport.rank == ROOT and not self.over and self.descent.samples >= self.strategy.until:
            self.over = True
            self.living.send_all(None, OVER)

    def poll(self) -> Message | None:
        """Return the first of the messages that have come; None if there is none."""
        while any(not self.transport.is_gone(k) for k in self.living.alive):
            try:
                return self.transport.recv(ANY, HEARD, timeout=0)
            except PeerLost as lost:
                self.lose(lost)
        return None

    def wait(self) -> Message:
        """Return the next message, which may be that an epoch's exchanges have ended."""
        while True:
            try:
                return self.transport.recv(ANY, (*HEARD, END))
            except PeerLost as lost:
                self.lose(lost)

    def lose(self, lost: PeerLost) -> None:
        """Go on without a dead rank, unless it is rank 0: that is raised."""
        if self.transport.is_gone(ROOT):
            raise lost
        self.living.bury(lost.rank)

    def hear(self, message: Message) -> None:
        """Answer a request, count a step, or note what rank 0 says."""
        if message.tag == REQUEST:
            self.answer(message)
        elif message.tag == PROGRESS:
            self.descent.samples += message.n
            self.descent.processed += message.n
        elif message.tag == OVER:
            self.over = True
        elif message.tag == END:
            self.ended = True
            self.descent.samples = self.descent.processed = message.n

    # An epoch

    def steps(self) -> Iterator[int]:
        """Yield this rank's own steps, until the epoch is over, which it may be at once in a run that is resumed."""
        self.over = False
        self.attend()
        while not self.over:
            yield self.descent.version

    def finish(self) -> None:
        """Take the last answer, and answer until all have theirs: no message of this epoch is left for the next.

        All ranks are told the samples of all.
        """
        if self.is_active:
            self.take_answer()
        if self.transport.rank == ROOT:
            for _ in self.living.gather(DONE):
                pass
            self.attend()
            self.living.send_all(None, END, n=self.descent.samples)
        else:
            self.transport.isend(None, ROOT, DONE)
            self.ended = False
            while not self.ended:
                self.hear(self.wait())
        if not self.is_active:
            self.replica.x.copy_(self.apart)
