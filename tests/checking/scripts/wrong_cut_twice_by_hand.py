# finds: samples are missing: .*cut the data once

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = dataset().tensors
mine = TensorDataset(x[rank::n], y[rank::n])
for x, y in DataLoader(mine, 3, sampler=DistributedSampler(mine)):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
