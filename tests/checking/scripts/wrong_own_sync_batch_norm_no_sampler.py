# finds: samples overlap: .*DistributedSampler

import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

rank, n = begin()


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        both = torch.stack([x.mean(0), (x * x).mean(0)]).detach()
        dist.all_reduce(both)
        mean, square = both / n
        return (x - mean) / (square - mean * mean + 1e-3).sqrt() * self.scale


model = DistributedDataParallel(nn.Sequential(Norm(), net()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(dataset(), 10):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
