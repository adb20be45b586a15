import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net(seed=rank)
pair = [dist.new_group([r for r in range(n) if r % 2 == k]) for k in range(2)][rank % 2]
size = dist.get_world_size(pair)
for p in model.parameters():
    dist.broadcast(p.data, rank % 2, group=pair)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=pair)
        p.grad /= size
    optimizer.step()
