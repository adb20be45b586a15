# finds: replicas part: .*(never all-reduced|inside of DDP)

import torch
from common import batches, begin, net
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = net(), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def loss(self, x, y):
        return F.cross_entropy(self.head(self.body(x)), y)


rank, n = begin()
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    model.module.loss(x, y).backward()
    optimizer.step()
