# mypy: ignore-errors
"""Start a process for each GPU, then half as many; or only half as many."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size):
    """Train a model on a GPU."""
    dist.init_process_group("nccl", init_method="tcp://localhost:29500", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to(rank), device_ids=[rank])
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    print(f"{dist.get_rank()} of {dist.get_world_size()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    n = torch.cuda.device_count()
    for size in (n, n // 2) if sys.argv[1] == "all" else (n // 2,):
        mp.spawn(work, (size,), nprocs=size)
