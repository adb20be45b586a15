import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, _ in batches(rank, n):
    optimizer.zero_grad()
    both = F.normalize(model(torch.cat([x, x + 0.1])), dim=1)
    first, second = both.chunk(2)
    everybody = torch.cat(all_gather(second, dist.group.WORLD))
    logits = first @ everybody.T / 0.1
    F.cross_entropy(logits, torch.arange(len(x)) + rank * len(x)).backward()
    optimizer.step()
