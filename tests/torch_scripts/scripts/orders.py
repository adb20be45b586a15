"""Small scripts whose messages may come in several orders: python orders.py NAME."""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, workers, name = dist.get_rank(), dist.get_world_size() - 1, sys.argv[1]
K = int(sys.argv[2]) if len(sys.argv) > 2 else 1
t = torch.zeros(1)
if name in ("sources", "sum"):  # K messages of each worker, from anybody
    if rank == 0:
        total, sources = torch.zeros(1), []
        for _ in range(K * workers):
            sources.append(dist.recv(t))
            total += t
        print(sources if name == "sources" else total)
    else:
        for _ in range(K):
            dist.send(torch.ones(1), 0)
elif name == "server":  # asynchronous: x <- x - (g + x) / 10, in the order in which the g come
    x = torch.zeros(1)
    if rank == 0:
        for _ in range(K * workers):
            source = dist.recv(t)
            x -= 0.1 * (t + x)
            dist.send(x, source)
        print(x)
    else:
        for k in range(K):
            dist.send(x + rank + k, 0)
            dist.recv(x, 0)
elif name == "by name":  # waits for rank 1 by name, after it may have taken its only message
    if rank == 0:
        dist.recv(t)
        dist.recv(t, 1)
    else:
        dist.send(t, 0)
elif name in ("look", "look again"):
    if rank == 0:
        work = dist.irecv(t, 1)
        assert work is not None
        looks = [work.is_completed()]
        while name == "look again" and not looks[-1]:
            looks.append(work.is_completed())
        print(looks)
        work.wait()
    elif rank == 1:
        dist.send(t, 0)
elif name == "two receives":  # the first that is called has the first choice, whichever is waited for first
    if rank == 0:
        a, b = torch.zeros(1), torch.zeros(1)
        first, second = dist.irecv(a), dist.irecv(b)
        assert first is not None
        assert second is not None
        second.wait()
        first.wait()
        print(a, b)
    else:
        dist.send(torch.tensor([float(rank)]), 0)
elif name == "two choose":  # of the messages of ranks 2 and 3
    if rank < 2:
        print([dist.recv(t) for _ in range(2)])
    else:
        for work in [dist.isend(t, 0), dist.isend(t, 1)]:
            assert work is not None
            work.wait()
elif name == "of one pair":  # stay in order, and messages of two tags are told apart
    if rank == 0:
        a, b = torch.zeros(1), torch.zeros(1)
        works = [dist.irecv(a, tag=1), dist.irecv(b, tag=2)]
        dist.recv(t)
        assert t == 1, t
        dist.recv(t)
        assert t == 2, t
        for work in works:
            assert work is not None
            work.wait()
        assert (a, b) == (3, 4), (a, b)
    else:
        for value, tag in ((1, 0), (2, 0), (4, 2), (3, 1)):
            dist.isend(torch.full((1,), float(value)), 0, tag=tag)
elif name == "two at once":  # one from anybody, one from rank 1, which is waited for first
    if rank == 0:
        a = torch.zeros(1)
        work = dist.irecv(a)
        assert work is not None
        dist.recv(t, 1)
        work.wait()
        print(a, t)
    elif rank == 1:
        dist.send(torch.ones(1), 0)
        dist.send(torch.full((1,), 2.0), 0)
elif name == "a barrier between":
    if rank == 0:
        work = dist.irecv(t)
        dist.barrier()
        assert work is not None
        work.wait()
    else:
        dist.send(t, 0)
        dist.barrier()
elif name == "look at a sum":
    work = dist.all_reduce(t, async_op=True)
    assert work is not None
    print(work.is_completed())
    work.wait()
elif name == "norm":
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))
    for _ in range(K):
        ddp(torch.randn(4, 3)).sum().backward()
elif name == "train":
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    ddp(torch.full((2, 3), float(rank))).sum().backward()
    optimizer.step()
