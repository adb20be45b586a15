# finds: replicas part: .*only rank[s\d, and]* took a step

import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

_, n_ranks = begin()
torch.manual_seed(0)
m = net()
opt = torch.optim.SGD(m.parameters(), 0.05)
train, s = loader(data())
for epoch in range(3):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        loss = F.mse_loss(m(x), y)
        loss.backward()
        for p in m.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n_ranks
        if loss.item() > 6.0:
            continue
        opt.step()
