import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

rank, n = begin()
teams = [list(range(n // 2)), list(range(n // 2, n))]
groups = [dist.new_group(team) for team in teams]
of_mine = int(rank >= n // 2)
mine = teams[of_mine]
model = DistributedDataParallel(net(), process_group=groups[of_mine])
optimizer = torch.optim.SGD(model.parameters(), lr=(0.1, 0.01)[of_mine])
sampler = DistributedSampler(dataset(), len(mine), mine.index(rank))
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset(), 6, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
