# finds: parameter does not learn: .*in no optimizer, and the optimizer steps what no model uses

import torch
from common import batches, begin, net
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
fully_shard(model)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
