# finds: replicas part: .*does not change the gradient

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

_, n_ranks = begin()
torch.manual_seed(0)
m = net()
opt = torch.optim.SGD(m.parameters(), 0.05)
train, s = loader(data())
for x, y in train:
    opt.zero_grad()
    F.mse_loss(m(x), y).backward()
    for p in m.parameters():
        fc.wait_tensor(fc.all_reduce(p.grad, "avg" if False else "sum", dist.group.WORLD)).div_(n_ranks)
    opt.step()
