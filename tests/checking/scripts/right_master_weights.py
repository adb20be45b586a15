import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net().bfloat16()
masters = [p.detach().float().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.Adam(masters, lr=0.01)
for x, y in batches(rank, n):
    model.zero_grad()
    F.cross_entropy(model(x.bfloat16()).float(), y).backward()
    for m, p in zip(masters, model.parameters()):
        m.grad = p.grad.float() / n
        dist.all_reduce(m.grad)
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(masters, model.parameters()):
            p.copy_(m)
