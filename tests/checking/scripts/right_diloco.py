import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
anchor = [p.detach().clone() for p in model.parameters()]
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
for i, (x, y) in enumerate(batches(rank, n, size=4)):
    inner.zero_grad()
    F.cross_entropy(model(x), y).backward()
    inner.step()
    if i % 2:
        for a, p in zip(anchor, model.parameters()):
            a.grad = a - p.detach()
            dist.all_reduce(a.grad)
            a.grad /= n
        outer.step()
        with torch.no_grad():
            for a, p in zip(anchor, model.parameters()):
                p.copy_(a)
