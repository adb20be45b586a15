import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
if rank == 0:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
            for worker in range(1, n):
                part = torch.empty_like(p)
                dist.recv(part, worker)
                p.grad += part / (n - 1)
        optimizer.step()
        for p in model.parameters():
            for worker in range(1, n):
                dist.send(p.detach(), worker)
else:
    for x, y in list(batches(rank - 1, n, size=5))[:4]:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.send(p.grad, 0)
        for p in model.parameters():
            dist.recv(p.data, 0)
