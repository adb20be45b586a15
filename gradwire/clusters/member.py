"""A rank of a run that others have started: torchrun, mpirun or Dask. It shares no memory with its peers."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gradwire.core.launchers.failures import do_work, with_advice
from gradwire.core.launchers.launcher import Job
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import PeerLost, WaitTimeout


def take_part(transport: Transport, job: Job) -> list[Any]:
    """Do the work of this rank, and close its transport. Return all results on rank 0, nothing on the others.

    Raises RunFailed when a peer is lost, or does not answer.
    """
    rank = transport.rank
    try:
        with transport:
            agreed = replace(job, args=_agreed(transport, job.args))
            result = do_work(agreed, transport, job.on_report and partial(job.on_report, rank))
            if rank != 0:
                transport.isend(result, 0, "result")
                return []
            return [result, *(transport.recv(peer, "result").object for peer in transport.peers)]
    except PeerLost as error:
        raise RunFailed(with_advice(f"rank {rank}: {error}")) from error
    except WaitTimeout as error:  # which names the rank
        raise RunFailed(with_advice(f"{error}: if a step takes that long, raise --timeout")) from error


def _agreed(transport: Transport, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `args` with the first as on rank 0: each process has made its own, at its own time of day."""
    with transport.recorder.paused():
        if args and transport.rank != 0:
            return transport.recv(0, "arguments").object, *args[1:]
        for peer in transport.peers if args else ():
            transport.isend(args[0], peer, "arguments")
    return args


def uses_nccl(job: Job, local_size: int) -> bool:
    """Return whether tensors go by NCCL: each rank of this machine has a GPU of its own, and none is a server."""
    return job.device == "cuda" and local_size <= torch.cuda.device_count() and "server" not in job.roles
