import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch import nn
from torch.nn import functional as F

rank, n_ranks = begin()
torch.manual_seed(0)
m = net()
n = sum(p.numel() for p in m.parameters())
pad = -n % n_ranks
flat = torch.cat([p.data.flatten() for p in m.parameters()] + [torch.zeros(pad)])
k = len(flat) // n_ranks
shard = nn.Parameter(flat[rank * k : (rank + 1) * k].clone())
opt = torch.optim.Adam([shard], 0.01)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        m.zero_grad()
        F.mse_loss(m(x), y).backward()
        g = torch.cat([p.grad.flatten() for p in m.parameters()] + [torch.zeros(pad)])
        out = torch.empty(k)
        dist.reduce_scatter_tensor(out, g)
        shard.grad = out / n_ranks
        opt.step()
        dist.all_gather_into_tensor(flat, shard.data)
        i = 0
        with torch.no_grad():
            for p in m.parameters():
                p.copy_(flat[i : i + p.numel()].view_as(p))
                i += p.numel()
