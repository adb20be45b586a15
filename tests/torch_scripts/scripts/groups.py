"""A script: the pairs of ranks that are given sum a vector, each in a group of its own."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, pairs = dist.get_rank(), [[first, first + 1] for first in range(0, dist.get_world_size(), 2)]
groups = [dist.new_group(pair) for pair in pairs]
if str(rank // 2) in sys.argv[1:]:
    vector = torch.full((1000,), float(rank))
    dist.all_reduce(vector, group=groups[rank // 2])  # type: ignore[arg-type]
    assert vector.tolist() == [2.0 * rank + (1 if rank % 2 == 0 else -1)] * 1000
dist.destroy_process_group()
