"""A script with one mistake, or one peculiarity, by its name: python mistakes.py NAME."""

import sys
import threading

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world_size, name = dist.get_rank(), dist.get_world_size(), sys.argv[1]
t = torch.zeros(4)
if name == "circle":
    dist.recv(t, (rank + 1) % world_size)
elif name == "sends first":
    dist.send(t, 1 - rank)
    dist.recv(t, 1 - rank)
elif name == "other collective":
    if rank == 1:
        dist.broadcast(t, 0)
    else:
        dist.all_reduce(t)
elif name == "other shape":
    dist.all_reduce(torch.zeros(4 + (rank == 1)))
elif name == "other message":
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(torch.zeros(3), 0)
elif name == "left":
    if rank == 0:
        dist.barrier()
elif name == "no backward":
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    out = ddp(torch.ones(2, 3)).sum()
    if rank == 0:
        out.backward()
elif name == "raises":
    if rank == 1:
        raise ValueError("no")
    dist.barrier()
elif name == "exits":
    if rank == 1:
        sys.exit(3)
    dist.barrier()
elif name == "blocks":
    if rank == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
elif name == "unread":
    if rank == 0:
        dist.isend(t, 1)
elif name == "world":
    dist.destroy_process_group()
    dist.init_process_group("gloo", rank=rank, world_size=7)
elif name == "small outputs":
    dist.all_gather([torch.zeros(5) for _ in range(world_size)], torch.zeros(3))
elif name == "catches all":
    while True:
        try:  # noqa: SIM105
            dist.recv(t, 1 - rank)
        except:  # noqa: E722 - as users write
            pass
elif name == "has no text":

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Mute
elif name == "is interrupted":
    import signal
    import time

    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    while True:
        time.sleep(0)
