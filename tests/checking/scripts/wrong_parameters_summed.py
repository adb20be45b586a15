# finds: average is a sum: .*3 times their mean divide

import torch
import torch.distributed as dist
from strangers import data, loader, net
from torch.nn import functional as F

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = net(1)
for p in model.parameters():
    dist.broadcast(p.data, 0)
samples, sampler = loader(data())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in samples:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    for p in model.parameters():
        dist.all_reduce(p.data)
