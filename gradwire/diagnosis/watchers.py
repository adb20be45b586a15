"""What hashes a run, and what counts its memory: on each rank."""

from functools import partial

from torch import Tensor

from gradwire.core.strategy.tensors import layout_of, trained
from gradwire.core.training.rank import Rank
from gradwire.core.training.watchers import Watcher
from gradwire.diagnosis.hashes import Arrays, Hashes
from gradwire.diagnosis.memory import Memory
from gradwire.diagnosis.memory_use import MemoryUse


class HashWatcher(Watcher):
    """Hashes each batch, the parameters, the gradients and the inputs of updates."""

    name = "hashes"

    def after_start(self, rank: Rank) -> None:
        """Hash the input of each update from here on."""
        self._hashes = Hashes(layout_of(rank.model))
        rank.strategy.updater.before_update = partial(self._hashes.update, rank.strategy.updater)

    def batch_ready(self, rank: Rank, x: Tensor, y: Tensor) -> None:
        """Hash a micro-batch."""
        self._hashes.batch(x, y)

    def gradient_ready(self, rank: Rank, i: int, loss: float, n: int) -> None:
        """Hash the parameters, and the gradient if it is this rank's still."""
        x = trained(rank.model)
        is_own = rank.replica.has_own_gradient
        self._hashes.gradient(i, x, [p.grad if is_own else None for p in x], n)

    def end_run(self, rank: Rank) -> Arrays:
        """Return all hashes."""
        if not rank.is_server:
            self._hashes.end(trained(rank.model))
        return self._hashes.arrays()


class MemoryWatcher(Watcher):
    """Counts the memory of training."""

    name = "memory"

    def begin_run(self, rank: Rank) -> None:
        """Count from here on."""
        self._memory = rank.stack.enter_context(Memory(rank.recorder))

    def before_start(self, rank: Rank) -> None:
        """Count the parameters and their gradients as such."""
        self._memory.watch(rank.model)

    def begin_epoch(self, rank: Rank) -> None:
        """Find the peak, from the first epoch on."""
        self._memory.begin_training()

    def begin_step(self, rank: Rank, i: int) -> None:
        """Begin the curve of a step."""
        self._memory.begin_step()

    def end_steps(self, rank: Rank, epoch: int) -> None:
        """End the curve of the last step."""
        self._memory.end_step()

    def end_run(self, rank: Rank) -> MemoryUse:
        """Return what was found."""
        return self._memory.use()
