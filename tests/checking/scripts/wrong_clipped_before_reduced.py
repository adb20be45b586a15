# finds: gradient is not the mean: .*unlike weights

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch import nn
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()
