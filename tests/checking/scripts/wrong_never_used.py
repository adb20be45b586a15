# finds: parameter does not learn: spare.weight, spare.bias never

import torch
import torch.distributed as dist
from common import batches, begin
from torch import nn
from torch.nn import functional as F

rank, n = begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.spare = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        if p.grad is None:
            continue
        dist.all_reduce(p.grad)
        p.grad /= n
    optimizer.step()
