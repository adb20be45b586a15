import torch
from common import batches, begin
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
torch.manual_seed(rank)
G = DistributedDataParallel(nn.Linear(4, 6))
D = DistributedDataParallel(nn.Linear(6, 1))
of_g = torch.optim.Adam(G.parameters(), lr=0.01)
of_d = torch.optim.Adam(D.parameters(), lr=0.01)
for x, _ in batches(rank, n):
    fake = G(torch.randn(len(x), 4))
    of_d.zero_grad()
    F.softplus(
        D(torch.cat([fake.detach(), x])) * torch.cat([torch.ones(len(x), 1), -torch.ones(len(x), 1)])
    ).mean().backward()
    of_d.step()
    of_g.zero_grad()
    F.softplus(-D(fake)).mean().backward()
    of_g.step()
