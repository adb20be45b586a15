# finds: replicas part:

import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = net(3)
for p in model.parameters():
    dist.broadcast(p.data, 0)
samples, sampler = loader(classes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(samples):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for i, p in enumerate(model.parameters()):
        dist.all_reduce(p.grad)
        p.grad /= n
        if (step, rank, i) == (1, 1, 2):  # a card loses what it received
            p.grad.zero_()
    optimizer.step()
