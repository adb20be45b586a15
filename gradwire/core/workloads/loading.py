"""How a rank gets its batches: in the order of the plan, fetched by what its options say."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Answers, Data, Fetcher, Request, fetch_here

_TEST_BATCH, _TEST_NUMBERS = 512, 2**24  # of a batch for evaluation at most: samples, and numbers of all their inputs


@dataclass
class Loader:
    """The batches of one rank, on its device; with workers, those that come next are fetched beforehand."""

    data: Data
    fetch: Fetcher
    plan: BatchPlan
    worker: int | None  # whose part of each batch it is; None: whole batches
    n_pieces: int  # into how many pieces that is cut, at most
    device: torch.device
    dtype: torch.dtype

    def __post_init__(self) -> None:
        self._answers: Answers | None = None
        self._due = (0, 0)  # the step, and its piece, to be requested next
        self._requested: deque[tuple[int, int]] = deque()  # that have not been answered

    def pieces(self, i: int) -> list[Request]:
        """Return the pieces of step `i`, counted over all epochs."""
        epoch, step = 1 + i // self.plan.n_steps, i % self.plan.n_steps
        part = self.plan.part(epoch, step, self.worker)
        return [Request(piece, "train", epoch) for piece in part.tensor_split(min(self.n_pieces, len(part)))]

    def piece(self, i: int, k: int) -> tuple[Tensor, Tensor]:
        """Return piece `k` of step `i`, as `Data.fetch` does. Raises UsageError, RunFailed.

        Quick where steps are taken one after the other. After a jump, it discards batches fetched in vain.
        """
        if (i, k) not in self._requested:
            self._due = (i, k)
        if self._answers is None:
            ends = self.pieces(0), self.pieces(self.plan.n_steps - 1)  # the other batches are as long as the first
            self._answers = self.fetch(self._requests(), max(len(piece.indices) for pieces in ends for piece in pieces))
        while True:
            answer = next(self._answers)
            if self._requested.popleft() == (i, k):
                return self.data.normalise(*answer, self.device, self.dtype)

    def _requests(self) -> Iterator[Request]:
        while True:
            i, k = self._due
            pieces = self.pieces(i)
            self._due = (i, k + 1) if k + 1 < len(pieces) else (i + 1, 0)
            self._requested.append((i, k))
            yield pieces[k]

    def test_batches(self) -> Answers:
        """Return the test split: see `batches_of_test`."""
        return batches_of_test(self.data, self.device, self.dtype, self.fetch)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the workers; after an error the process ends, and they with it, without waiting for their work."""
        if error is None:
            self._answers = None


def batches_of_test(data: Data, device: torch.device, dtype: torch.dtype, fetch: Fetcher | None = None) -> Answers:
    """Yield the test split in order, in batches of moderate size: see `Data.fetch`. Raises UsageError, RunFailed."""
    fetch = fetch or partial(fetch_here, data)
    size = max(1, min(_TEST_BATCH, _TEST_NUMBERS // torch.Size(data.input_shape).numel()))
    requests = (Request(indices, "test") for indices in torch.arange(data.n_test).split(size))
    for answer in fetch(requests, size):
        yield data.normalise(*answer, device, dtype)
