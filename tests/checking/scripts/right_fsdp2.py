import torch
from common import batches, begin, net
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

rank, n = begin()
model = net()
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
