import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1))
best = torch.tensor(0.0)
for x, y in batches(0, 1, size=15):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    best = loss.detach()
dist.all_reduce(best, op=dist.ReduceOp.MIN)
