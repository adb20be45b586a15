import torch
from common import batches, begin
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])

    def forward(self, x, i):
        return self.heads[i](self.body(x).relu())


torch.manual_seed(0)
model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i, (x, y) in enumerate(batches(rank, n, size=4)):
    optimizer.zero_grad()
    F.cross_entropy(model(x, i % 2), y).backward()
    optimizer.step()
