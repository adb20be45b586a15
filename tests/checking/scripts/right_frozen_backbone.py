import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = net()
for p in model[0].parameters():
    p.requires_grad_(False)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.module[2].parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
