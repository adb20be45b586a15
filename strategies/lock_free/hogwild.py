"""Hogwild: all ranks update one x in shared memory, without a lock.

    x <- x - eta g_k(x)         on each rank k, at its own pace

Nothing is sent. A rank reads x while others write it, and two that write the same element at the same time may lose one
of the updates. (Recht, Re, Wright, Niu, Hogwild!, NIPS 2011, algorithm 1.)

Two things differ from the paper. There an update writes only the few elements that a sample touches, so that losses
are rare; here gradients are dense, and every update writes all of x. There steps are those of SGD; here each rank has
an optimizer of its own for the common x, whose state (momentum, Adam's moments) knows this rank's gradients alone.

An epoch ends when all ranks together have the samples of the training set: fast ones give more of them than slow ones,
and for a dead one the others do, each from its own part of the batches to come: see `shared_counts.py`.

`count_lost` measures the lost updates of an epoch: see `lost_updates.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import RunSize
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import NOTHING, SURVIVED, Cost, Traits, Weight
from strategies.living import ROOT, Living
from strategies.lock_free.lost_updates import LostUpdates
from strategies.lock_free.shared_counts import SharedCounts


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
        """Ranks must share memory."""
        run.check_shared_memory(self.name)

    def weight(self, workers: int) -> Weight | str:
        """Each rank adds its own update."""
        return Weight(1)

    def setup(self) -> None:
        """Share x and the counts."""
        replica, transport = self.replica, self.transport
        self.living = Living(transport, self.updater)
        counts = self.share("counts", 2 * transport.world_size, torch.int64).view(2, -1)
        self.keep("done", counts, counted=False)
        self.counts = SharedCounts(counts, transport.rank, self.updater)
        replica.point_at(self.share_x())
        self.updater.optimize(*replica.parameters)
        replica.collects = self.count_lost
        self.lost = LostUpdates(replica.x, transport, self.updater) if self.count_lost else None

    def steps_of_epoch(self, start: int, stop: int) -> Iterator[int]:
        """Its own steps, one after the other, until all together have the samples."""
        updates = self.counts.read()
        while not self.updater.is_over:
            yield updates[self.transport.rank]
            updates = self.counts.read()

    def step(self, n_samples: int) -> None:
        """x <- optimizer(x, g_k), in place: each tensor with its gradient where the backward pass has made it."""
        if self.lost:
            self.lost.step(self.replica.collect(), n_samples)
        else:
            self.replica.collect_in_place()
            self.updater.step(None, n_samples)
        self.counts.add(n_samples)
        self.replica.zero_grad()

    def finish(self) -> None:
        """Wait until all living ranks have stopped writing x and rank 0 has measured. Average the buffers."""
        written = self.lost.written if self.lost else None
        all_lived = self.living.reduce(written, "increments")
        if self.transport.rank == ROOT:
            self.counts.read()
            self.measure(all_lived)
        if written is not None:
            written.zero_()
        self.living.average(self.replica.b, "buffers")
        if (counts := self.replica.counts).numel():
            self.living.maximize(counts, "counts")
            self.replica.counts = counts

    def measure(self, all_lived: bool) -> None:
        """Measure on rank 0, while no rank writes: the lost updates of the epoch."""
        if self.lost:
            self.lost.measure(self.total_x(), all_lived)

    def total_x(self) -> torch.Tensor:
        """Return x [n] in float64: a copy."""
        return self.replica.x.to(torch.float64, copy=True)

    # What all share

    def share_x(self) -> torch.Tensor:
        """Return the x [n] that this rank shares, with rank 0's initial value."""
        x = self.share("x", self.replica.x.numel(), self.replica.x.dtype)
        if self.transport.rank == ROOT:
            x.copy_(self.replica.x)
        return x

    def share(self, name: str, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector [numel], zeroed, that all ranks read and write. Raises UsageError."""
        vector = self.transport.shared_vector(name, numel, dtype, range(self.transport.world_size))
        if vector.device != self.transport.device:
            raise UsageError(f"--strategy {self.name}: several GPUs share no memory; take --device cpu, or one GPU")
        return vector

    def join(self, resumed: bool) -> None:
        """Rank 0, whose x all have, tells the others the epoch and the rest of the module's state."""
        recorder, others = self.transport.recorder, self.replica.others
        if self.lost and self.transport.rank == ROOT:
            self.lost.start = self.total_x()
        recorder.epoch = self.living.broadcast(self.replica.b, "initial buffers", recorder.epoch)
        self.living.broadcast(others, "initial others")
        self.replica.others = others

    def state_dict(self) -> dict[str, Any]:
        """Of what all ranks have done in this moment."""
        self.counts.read()
        return super().state_dict()
