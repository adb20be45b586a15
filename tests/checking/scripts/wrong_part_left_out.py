# finds: note: samples are missing:

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mine = Subset(dataset(), range(rank * 60 // n // 2, (rank + 1) * 60 // n // 2))
for x, y in DataLoader(mine, 5):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
