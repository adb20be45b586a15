"""How the ranks of torch.distributed find each other: by a store, torchrun's or another."""

import itertools
import socket
from datetime import timedelta

import torch.distributed as dist

from gradwire.clusters.process_group import ProcessGroup
from gradwire.core.transports.messages import Setup


def connect(setup: Setup, nccl: bool, meeting: tuple[dist.Store, int, int] | None = None) -> ProcessGroup:
    """Return this process's transport, its clock aligned.

    `nccl`: tensors between GPUs go through NCCL; every rank must have a GPU of its own. `meeting`: the store by which
    the ranks find each other, the rank and the number of ranks; None: as the environment of torchrun says. Raises
    RuntimeError if no rank answers.
    """
    limit = timedelta(seconds=setup.timeout)
    store, rank, world_size = meeting or _meet(limit)
    dist.init_process_group("gloo", timeout=limit, store=store, rank=rank, world_size=world_size)
    # Two, since an operation of NCCL between two ranks waits for the one before it: each direction has its own.
    groups = [dist.new_group(backend="nccl", timeout=limit) for _ in ("to higher ranks", "to lower ranks") if nccl]
    transport = ProcessGroup(setup, groups)
    try:
        transport.align_clocks()
    except BaseException as error:
        transport.__exit__(type(error), error, None)
        raise
    return transport


def serve_store(host: str, timeout: float) -> dist.TCPStore:
    """Return a store that listens on this address of this machine, and on no other, at a free port, `store.port`.

    It does not wait. Raises OSError.
    """
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    server = socket.create_server((host, 0), family=family)  # by itself TCPStore would listen on all addresses
    port = server.getsockname()[1]
    limit = timedelta(seconds=timeout)
    return dist.TCPStore(
        host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=server.detach()
    )


_met: list[tuple[dist.Store, int, int]] = []  # at most once a process: rank 0 may have the only server of the store
_runs = itertools.count()


def _meet(limit: timedelta) -> tuple[dist.Store, int, int]:
    """Return torchrun's store, with keys for this run alone, the rank and the number of ranks."""
    if not _met:
        _met.append(next(dist.rendezvous("env://", timeout=limit)))
    store, rank, world_size = _met[0]
    store.set_timeout(limit)
    return dist.PrefixStore(f"run {next(_runs)}", store), rank, world_size
