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
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    shown = loss.detach() / n
    dist.reduce(shown, 0)
    every = [torch.empty(1) for _ in range(n)]
    work = dist.all_gather(every, loss.detach().view(1), async_op=True)
    work.wait()
