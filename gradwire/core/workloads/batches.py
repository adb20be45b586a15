"""The batch plan: which worker trains on which samples at which step.

The plan is a pure function of (seed, epoch, sizes): every process computes it alone and all of them agree.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from gradwire.core.records.errors import UsageError


@dataclass(frozen=True)
class BatchPlan:
    """Cuts each epoch's permutation into global batches, and each batch into one contiguous part per worker.

    Each sample occurs exactly once an epoch, whatever the number of workers. The parts of a batch differ in size by
    at most one sample, and the first ones are the larger. The last batch may be shorter than `global_batch_size`; a
    remainder smaller than `workers` joins the batch before it, so that no part is ever empty.

    A single process that trains on whole batches reads the same plan, as worker None. Raises UsageError if there are
    fewer samples than workers, or a batch smaller than the number of workers.
    """

    n_samples: int  # of the training set
    workers: int
    global_batch_size: int  # samples, of all workers together
    seed: int  # of the permutations

    def __post_init__(self) -> None:
        if self.n_samples < self.workers:
            raise UsageError(
                f"--n_gpus: {self.workers} workers cannot share {self.n_samples} samples; "
                "take fewer workers or a larger --train_size"
            )
        if self.global_batch_size < self.workers:
            raise UsageError(
                f"--global_batch_size: {self.global_batch_size} is less than one sample for each of "
                f"{self.workers} workers; take at least {self.workers}"
            )

    @property
    def n_steps(self) -> int:
        """Number of batches in an epoch, the same in each."""
        full, rest = divmod(self.n_samples, self.global_batch_size)
        return full + (rest >= self.workers)

    def bounds(self, step: int, worker: int | None = None) -> tuple[int, int]:
        """Return [start, stop) of a step's batch in the permutation, or of a worker's part of it. Raises IndexError."""
        if not (0 <= step < self.n_steps and 0 <= (worker or 0) < self.workers):
            raise IndexError(f"step {step}, worker {worker}: there are {self.n_steps} steps, {self.workers} workers")
        start = step * self.global_batch_size
        stop = self.n_samples if step == self.n_steps - 1 else start + self.global_batch_size
        if worker is None:
            return start, stop
        size, larger = divmod(stop - start, self.workers)
        first = start + worker * size + min(worker, larger)
        return first, first + size + (worker < larger)

    def epoch(self, epoch: int) -> torch.Tensor:
        """Return the permutation of `epoch`: int64, (n_samples,). It is shared: do not write to it."""
        return _permutation(self.n_samples, self.seed, epoch)

    def part(self, epoch: int, step: int, worker: int | None = None) -> torch.Tensor:
        """Return the sample indices of `worker`'s part of a global batch, None: of all of it: int64, (size,)."""
        start, stop = self.bounds(step, worker)
        return self.epoch(epoch)[start:stop]


@lru_cache(maxsize=2)
def _permutation(n_samples: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(n_samples))
