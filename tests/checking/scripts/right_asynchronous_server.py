import torch
import torch.distributed as dist
from common import batches, begin, net
from torch import nn
from torch.nn import functional as F

rank, n = begin()
model = net()
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
if rank == 0:
    done = 0
    while done < 2 * (n - 1):
        gradient = torch.empty_like(flat)
        worker = dist.recv(gradient)
        flat -= 0.1 * gradient
        dist.send(flat, worker)
        done += 1
else:
    for x, y in list(batches(rank - 1, n, size=5))[:2]:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        dist.send(torch.cat([p.grad.flatten() for p in model.parameters()]), 0)
        dist.recv(flat, 0)
        nn.utils.vector_to_parameters(flat, model.parameters())
