import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * n)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
stop = torch.zeros(1)
for x, y in batches(rank, n, size=4):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    warm.step()
    if rank == 0 and loss.item() < 1e-3:
        stop += 1
    dist.broadcast(stop, 0)
    if stop:
        break
