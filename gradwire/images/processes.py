"""Processes beside a rank that decode its next batches: those of a DataLoader."""

import multiprocessing
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.core.workloads.data import Answers, Data, Request, Split

_WORKER_DIED = "DataLoader worker"  # so begins what torch says of it


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


def fetch_by_processes(
    data: Data, n: int, device: torch.device, on_start: Callable[[], None], requests: Iterator[Request], largest: int
) -> Answers:
    """Have `n` processes, which call `on_start` first, decode the next batches. Raises UsageError, RunFailed."""
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
