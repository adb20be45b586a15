# finds: note: buffers part: .*running_mean

import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch import nn
from torch.nn import functional as F

rank, n_ranks = begin()
torch.manual_seed(0)
m = nn.Sequential(nn.BatchNorm1d(6), net())
if rank == 0:
    m[0].running_mean.fill_(0.5)
    m[1][0].weight.data.mul_(1.1)
for p in m.parameters():
    dist.broadcast(p.data, 0)
opt = torch.optim.SGD(m.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(m(x), y).backward()
        for p in m.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n_ranks
        opt.step()
