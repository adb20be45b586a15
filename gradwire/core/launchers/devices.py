"""The share of the machine that a rank gets: a device, cores, and a recorder that waits for the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from gradwire.core.launchers.launcher import Job
from gradwire.core.records.machine import usable_cores
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.messages import Setup


def set_up(job: Job, rank: int, local: tuple[int, int] | None = None, cores: int | None = None) -> Setup:
    """Make this process a rank of the job; return what its transport needs.

    `local`: its number among the ranks of its machine, and how many these are; None: all are on one machine.
    `cores`: how many cores these ranks may use together; None: those of this process.
    This function sets the state that is global in a process: the number of threads and the random state.
    """
    local_rank, local_size = local or (rank, job.world_size)
    use_share_of_cores(local_size, cores)
    on_gpu = job.device == "cuda"
    # Dropout differs between ranks. torch.manual_seed is slow: it notes the seed for kinds of GPU that are not there.
    (torch.manual_seed if on_gpu else torch.default_generator.manual_seed)(job.seed + 1 + rank)
    device = torch.device(job.device)
    if on_gpu:  # ranks beyond the GPUs of a machine share them
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    # On a GPU the recorder waits for the work that is queued there.
    recorder = Recorder(rank, job.record, partial(torch.cuda.synchronize, device) if on_gpu else None)
    return Setup(device, job.timeout, recorder, job.link)


def use_share_of_cores(world_size: int, cores: int | None = None) -> None:
    """Give this process its share of the cores: max(1, cores // ranks) threads, and no more than it has cores."""
    own = len(usable_cores())
    torch.set_num_threads(min(own, max(1, (cores or own) // world_size)))


@contextmanager
def as_before() -> Iterator[None]:
    """At the end of the block, give this process, which is no rank itself, its threads and random state back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
