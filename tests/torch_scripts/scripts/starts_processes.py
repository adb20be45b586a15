"""Starts its ranks itself, as a tutorial of torch does, and a loader of data with a worker of its own."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def run(rank: int, size: int) -> None:
    """Send a number from the first to the second."""
    loader = DataLoader(TensorDataset(torch.arange(3)), num_workers=1, multiprocessing_context="fork")
    assert [int(x) for (x,) in loader] == [0, 1, 2]
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    print("rank", rank, "has", tensor[0].item())


def begin(rank: int, size: int) -> None:
    """Join the others."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("gloo", rank=rank, world_size=size)
    run(rank, size)


if __name__ == "__main__":
    mp.set_start_method("spawn")
    processes = [mp.Process(target=begin, args=(rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
