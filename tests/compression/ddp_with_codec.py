"""DistributedDataParallel whose gradients travel as codes: run `python -m tests.compression.ddp_with_codec`."""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.compression.ddp_hook import CodecState, codec_hook
from gradwire.compression.topk import TopK


def train(rank: int, n_ranks: int, folder: str) -> None:
    torch.set_num_threads(1)  # the processes share the cores
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_ranks)
    digits = load_digits()
    x, y = torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    state = CodecState(TopK(density=0.05), model)
    model.register_comm_hook(state, codec_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    mine = torch.arange(rank, 1400, n_ranks)
    for epoch in range(10):
        state.epoch = epoch + 1
        for batch in mine[torch.randperm(len(mine))].split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    if rank == 0:
        print(f"accuracy {(model.module(x[1400:]).argmax(1) == y[1400:]).float().mean():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (2, folder), nprocs=2)
