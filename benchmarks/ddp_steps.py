"""A usual script with DistributedDataParallel; it prints the seconds of each step without the first two.

python benchmarks/ddp_steps.py RANKS STEPS [BUCKET_MB]
"""

import os
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, world_size: int, steps: int, bucket_mb: float) -> None:
    """Train as one rank."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = os.environ.get("MASTER_ADDR", "localhost"), "29512"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(rank)
    ends = []
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(torch.randn(16, 64)), torch.randint(10, (16,))).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    dist.barrier()
    if rank == 0:
        print(*(end - begin for begin, end in pairwise(ends[1:])))


if __name__ == "__main__":
    n, steps, bucket_mb = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 25
    if "RANK" in os.environ:  # torchrun has started it
        train(int(os.environ["RANK"]), n, steps, bucket_mb)
    else:
        mp.spawn(train, (n, steps, bucket_mb), nprocs=n)
