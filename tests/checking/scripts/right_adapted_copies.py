import copy

import torch
import torch.distributed as dist
from common import begin
from strangers import data, net
from torch.nn import functional as F

rank, n_ranks = begin()
torch.manual_seed(0)
m = net()
meta = torch.optim.SGD(m.parameters(), 1.0)
for it in range(4):
    fast = copy.deepcopy(m)
    inner = torch.optim.SGD(fast.parameters(), 0.02)
    x, y = data(8, 10 + it * n_ranks + rank)[:]
    for _ in range(3):
        inner.zero_grad()
        F.mse_loss(fast(x), y).backward()
        inner.step()
    meta.zero_grad()
    for p, q in zip(m.parameters(), fast.parameters()):
        d = (p - q).detach()
        dist.all_reduce(d)
        p.grad = d * 0.5 / n_ranks
    meta.step()
