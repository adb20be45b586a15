# finds: note: parameter does not learn: .*in no optimizer

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch import nn
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
adapter = nn.Linear(3, 3)
whole = nn.Sequential(model, adapter)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(whole(x), y).backward()
    for p in whole.parameters():
        dist.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()
