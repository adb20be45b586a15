# finds: samples overlap: .*DistributedSampler

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(dataset(), 10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
