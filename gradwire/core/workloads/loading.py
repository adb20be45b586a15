"""How a rank gets its batches: decoded when they are wanted, by other processes beforehand, or by DALI."""

import multiprocessing
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.workloads.batches import BatchPlan
from gradwire.core.workloads.data import Answers, Data, Fetcher, Request, Split

_TEST_BATCH, _TEST_NUMBERS = 512, 2**24  # of a batch for evaluation at most: samples, and numbers of all their inputs
_WORKER_DIED = "DataLoader worker"  # so begins what torch says of it


@dataclass(frozen=True)
class LoaderKind:
    """A loader by name: `make(data, workers, device, on_start)` returns a fetcher with `workers` processes.

    Each process calls `on_start` first. `check` raises UsageError if the loader cannot read the data.
    """

    make: Callable[[Data, int, torch.device, Callable[[], None]], Fetcher]
    check: Callable[[Data], None] = lambda data: None


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
    fetch = fetch or partial(_fetch_here, data)
    size = max(1, min(_TEST_BATCH, _TEST_NUMBERS // torch.Size(data.input_shape).numel()))
    requests = (Request(indices, "test") for indices in torch.arange(data.n_test).split(size))
    for answer in fetch(requests, size):
        yield data.normalise(*answer, device, dtype)


def _fetch_here(data: Data, requests: Iterator[Request], largest: int) -> Answers:
    for request in requests:
        yield data.raw(request)


@dataclass
class _Requested(Dataset[tuple[Tensor, Tensor] | UsageError]):
    """Return the answer to a request; an error in the user's code is an answer too, which the rank raises."""

    data: Data

    def __getitem__(self, request: tuple[list[int], Split, int]) -> tuple[Tensor, Tensor] | UsageError:
        indices, split, epoch = request
        try:
            return self.data.raw(Request(torch.tensor(indices), split, epoch))
        except UsageError as error:
            return error


def _fetch_by_workers(
    data: Data, n: int, device: torch.device, on_start: Callable[[], None], requests: Iterator[Request], largest: int
) -> Answers:
    if multiprocessing.current_process().daemon:
        raise UsageError(
            f"--loader_workers {n}: here a rank is a daemon, which may have no processes of its own; leave it out, or "
            "take --loader dali, which has threads"
        )
    with warnings.catch_warnings(action="ignore"), _former_handler():  # of more workers than cores, in every rank
        loader = DataLoader(
            _Requested(data),
            batch_size=None,  # a request is a batch
            # As numbers: a tensor is sent with all that it is a part of, here the order of the whole epoch.
            sampler=((indices.tolist(), split, epoch) for indices, split, epoch in requests),
            num_workers=n,
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(_begin, on_start),
            # Forked, a worker is this rank's own child, which ends with it; one of the fork server would not.
            multiprocessing_context="fork" if sys.platform == "linux" else None,
            generator=torch.Generator(),  # else it draws from the rank's generator, as dropout does
        )
        answers = iter(loader)
    while True:
        try:
            answer = next(answers)
        except StopIteration:
            return
        except (RuntimeError, EOFError, ConnectionError) as error:
            if isinstance(error, RuntimeError) and not str(error).startswith(_WORKER_DIED):
                raise
            raise RunFailed(
                f"a loader's worker died ({one_line(error)}); if memory ran out, take fewer --loader_workers or a "
                "smaller --batch_size"
            ) from error
        if isinstance(answer, UsageError):
            raise answer
        yield answer


@contextmanager
def _former_handler() -> Iterator[None]:
    """Keep the handler of SIGCHLD in the block: torch's raises an error wherever the rank is when a worker dies.

    Without it, a wait for that worker ends with an error within seconds.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may have handlers
        yield
        return
    former = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, former)


def _begin(on_start: Callable[[], None], worker: int) -> None:
    on_start()


def _by_torch(data: Data, workers: int, device: torch.device, on_start: Callable[[], None]) -> Fetcher:
    return partial(_fetch_by_workers, data, workers, device, on_start) if workers else partial(_fetch_here, data)


LOADERS = {"torch": LoaderKind(_by_torch)}
"""What decodes; wings add theirs."""
