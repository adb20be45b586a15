import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
first = torch.optim.SGD(model.module[0].parameters(), lr=0.1)
second = torch.optim.Adam(model.module[2].parameters(), lr=0.01)
for x, y in batches(rank, n):
    first.zero_grad()
    second.zero_grad()
    F.cross_entropy(model(x), y).backward()
    first.step()
    second.step()
