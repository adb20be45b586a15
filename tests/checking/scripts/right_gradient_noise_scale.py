import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    with model.no_sync():
        loss = F.cross_entropy(model(x), y)
        parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    small = torch.stack([g.square().sum() for g in parts]).sum()
    dist.all_reduce(small)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
