# finds: samples overlap: .*same seed

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(dataset(), seed=rank)
for x, y in DataLoader(dataset(), 5, sampler=sampler):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
