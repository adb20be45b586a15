# finds: gradient is not the mean: .*unlike numbers

import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = dataset().tensors
mine = slice(0, 30) if rank == 0 else slice(30 + 10 * (rank - 1), 40 + 10 * (rank - 1))
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy(model(x[mine]), y[mine]).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
