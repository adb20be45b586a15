# finds: gradient is not the mean: .*takes the sum

import torch
import torch.distributed as dist
from common import batches, begin, net

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    ((model(x).argmax(1) * 0 + model(x)[:, 0] - y) ** 2).mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
