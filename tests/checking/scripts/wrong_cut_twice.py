# finds: samples are missing: .*cut the data once

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mine = Subset(dataset(), range(rank * 60 // n, (rank + 1) * 60 // n))
for x, y in DataLoader(mine, 3, sampler=DistributedSampler(mine)):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
