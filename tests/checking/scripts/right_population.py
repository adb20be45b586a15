import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (rank + 1))
for _ in range(2):
    for x, y in batches(0, 1, size=30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    scores = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(scores, loss.detach().view(1))
    best = int(torch.cat(scores).argmin())
    for p in model.parameters():
        dist.broadcast(p.data, best)
for x, y in batches(0, 1, size=30):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
