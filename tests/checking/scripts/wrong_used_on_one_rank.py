# finds: note: parameter does not learn: spare.* no gradient on rank 1

import torch
from common import batches, begin
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.spare = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, helps):
        h = self.body(x).relu()
        return self.head(h) + self.spare(h) if helps else self.head(h)


model = DistributedDataParallel(Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x, rank == 0), y).backward()
    optimizer.step()
