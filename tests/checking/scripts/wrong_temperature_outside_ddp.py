# finds: replicas part: parameter 4 of SGD .*the ranks take different gradients

import torch
from common import batches, begin, net
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
temperature = nn.Parameter(torch.tensor(1.0))
optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x) * temperature, y).backward()
    optimizer.step()
