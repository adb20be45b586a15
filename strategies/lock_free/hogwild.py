"""Hogwild: all ranks update one x in shared memory, without a lock.

    x <- x - eta g_k(x)         on each rank k, at its own pace

Nothing is sent. A rank reads x while others write it, and two that write the same element at the same time may lose one
of the updates: each reads the element, adds to it, and writes the sum. (Recht, Re, Wright, Niu, 2011, Hogwild!: a
lock-free approach to parallelizing stochastic gradient descent, NIPS 2011, algorithm 1.)

Two things differ from the paper. There an update writes only the few elements that a sample touches, so that losses
are rare; here gradients are dense, and every update writes all of x. There steps are those of SGD; here each rank has
an optimizer of its own for the common x, whose state (momentum, Adam's moments) knows this rank's gradients alone.

An epoch ends when all ranks together have the samples of the training set: fast ones give more of them than slow ones,
and for a dead one the others do, each from its own part of the batches to come. Each counts in its own place of a
shared vector, so no count is lost.

`count_lost` measures the lost updates of an epoch. Every rank sums the increments d that it writes in float64, and

    lost_updates = sum over elements |sum of d - net movement of x| / sum over elements of the sum of |d|

is 0 but for rounding where nothing is lost; one rank alone shows that floor. It says the least that may have been lost,
for losses of opposite sign in one element cancel. Missing in an epoch in which a rank has died.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from records.errors import UsageError
from strategies.common.base import RunSize, Strategy
from strategies.common.descent import check_elementwise
from strategies.common.living import ROOT, Living
from strategies.common.shared import check_shared_memory
from strategies.common.traits import NOTHING, SURVIVED, Cost, Traits


@dataclass(kw_only=True)
class Hogwild(Strategy):
    """All ranks update one x in shared memory at their own pace, without a lock: some updates may be lost.

    Rank 0 has the state of a checkpoint, x and all counts; that of the other ranks' optimizers is lost in a resumed
    run, as with a rank that dies. x is written while it is saved.
    """

    count_lost: bool = False
    """Measure the lost updates of each epoch, which takes time: an update is computed apart, and then added to x."""

    traits = Traits(asynchronous=True, deaths=SURVIVED, defaults={"momentum": 0.0})  # late gradients act like momentum

    def cost(self, kind: str | None = None) -> Cost:
        """Nothing is sent."""
        return Cost(worker=NOTHING)

    def check(self, run: RunSize) -> None:
        """Ranks must share memory, and a tensor must be updated as it would be in all of x."""
        check_shared_memory(self.name, run)
        check_elementwise(run.optimizer, self.name)

    def clusters(self) -> list[range]:
        """Return the ranks that share one x: all of them."""
        return [range(self.transport.world_size)]

    def setup(self) -> None:
        """Share x, of each cluster, and the counts; rank 0 gives x its initial value."""
        replica, transport = self.replica, self.transport
        n, dtype = replica.x.numel(), replica.x.dtype
        self.living = Living(transport, self.descent)
        self.members = self.clusters()
        self.i = next(i for i, ranks in enumerate(self.members) if transport.rank in ranks)
        self.counts = self.share("counts", 2 * transport.world_size, torch.int64).view(2, -1)
        self.n_samples, self.n_updates = self.counts[:, transport.rank]  # the places of this rank
        self.xs = [self.share(f"x {i}", n, dtype) for i in range(len(self.members))]
        if transport.rank == ROOT:
            self.set_x(replica.x)
        replica.point_at(self.xs[self.i])
        self.increments = transport.allocate(n + 1 if self.count_lost else 0, torch.float64)
        if self.count_lost:
            self.own_x = torch.empty_like(replica.x)
            self.descent.optimize(self.own_x)
        else:
            self.descent.optimize(*replica.parameters)

    def share(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector [numel], zeroed, that all ranks read and write. Raises UsageError."""
        vector = self.transport.shared_vector(name, numel, dtype, range(self.transport.world_size))
        if vector.device != self.transport.device:
            raise UsageError(f"--strategy {self.name}: several GPUs share no memory; take --device cpu, or one GPU")
        return vector

    def set_x(self, x: torch.Tensor) -> None:
        """Let all begin at `x` [n]."""
        for x_i in self.xs:
            x_i.copy_(x)

    def join(self, resumed: bool) -> None:
        """Rank 0, whose x all have, tells the others the epoch and the rest of the module's state."""
        recorder, others = self.transport.recorder, self.replica.others
        if self.transport.rank == ROOT:
            self.start_x = self.total_x()
        recorder.epoch = self.living.broadcast(self.replica.b, "initial buffers", recorder.epoch)
        self.living.broadcast(others, "initial others")
        self.replica.others = others

    # An epoch

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Its own steps, one after the other, until all together have the samples."""
        updates = self.note_counts()
        while self.descent.samples < self.descent.until:
            yield updates[self.transport.rank]
            updates = self.note_counts()

    def step(self, n_samples: int) -> None:
        """x <- optimizer(x, g_k), in place: each tensor with its gradient where the backward pass has made it."""
        if self.count_lost:
            before = self.own_x.copy_(self.replica.x).clone()
            self.descent.step(self.replica.collect(), n_samples)
            self.write(self.own_x - before)
        else:
            self.replica.collect_in_place()
            self.descent.step(None, n_samples)
        self.n_samples += n_samples
        self.n_updates += 1
        self.replica.zero_grad()

    def write(self, increment: torch.Tensor) -> None:
        """x <- x + `increment` [n]."""
        self.replica.x.add_(increment)
        self.note(increment)

    def note(self, increment: torch.Tensor) -> None:
        """Sum what this rank has written: each element, and their absolute values."""
        self.increments[:-1].add_(increment)
        self.increments[-1].add_(increment.abs().sum(dtype=torch.float64))

    def note_counts(self) -> list[int]:
        """Take over what all ranks have counted; return the updates of each."""
        samples, updates = self.counts.tolist()
        self.descent.samples = self.descent.processed = sum(samples)
        self.descent.version = sum(updates)
        return updates

    def finish(self) -> None:
        """Wait for all that are alive: nobody writes x any more until rank 0 has measured. Average the buffers."""
        if self.transport.rank == ROOT:
            known = len(self.living.alive)
            for message in self.living.gather("increments"):
                with message:
                    self.increments.add_(message.vector)
            self.note_counts()
            self.measure(somebody_died=len(self.living.alive) < known)
        else:
            self.transport.isend(self.increments, ROOT, "increments").wait()
        self.increments.zero_()
        self.living.average(self.replica.b, "buffers")
        if (counts := self.replica.counts).numel():
            self.living.maximize(counts, "counts")
            self.replica.counts = counts

    def measure(self, somebody_died: bool) -> None:
        """On rank 0, while nobody writes: the lost updates of the epoch."""
        if self.count_lost:
            total = self.total_x()
            lost = (self.increments[:-1] - (total - self.start_x)).abs().sum()
            self.start_x = total
            self.transport.recorder.meters.pop("lost_updates", None)
            if not somebody_died:
                self.transport.recorder.meters["lost_updates"] = (
                    float(lost / self.increments[-1]) if self.increments[-1] else 0.0
                )

    def total_x(self) -> torch.Tensor:
        """Return the sum of all x [n] in float64."""
        return torch.stack(self.xs).sum(0, dtype=torch.float64)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """On rank 0: also what each rank has counted."""
        self.note_counts()
        return super().state_dict() | {"done": self.counts.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `state_dict`."""
        super().load_state_dict(state)
        self.counts.copy_(state["done"])
