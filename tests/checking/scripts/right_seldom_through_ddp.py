import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches(rank, n, size=2)):
    with model.no_sync():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if i % 2:
        for p in model.parameters():
            dist.all_reduce(p.data, op=dist.ReduceOp.AVG)
