# finds: replicas part: .*ranks 0 and 1 all-reduced its gradient .*no other

import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

rank, _ = begin()
g = dist.new_group([0, 1])
torch.manual_seed(0)
m = net()
opt = torch.optim.SGD(m.parameters(), 0.05)
for p in m.parameters():
    dist.broadcast(p.data, 0)
train, s = loader(data())
for x, y in train:
    opt.zero_grad()
    F.mse_loss(m(x), y).backward()
    if rank < 2:
        for p in m.parameters():
            dist.all_reduce(p.grad, group=g)
            p.grad /= 2
    opt.step()
