import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
for x, y in batches(rank, n):

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        return total / n

    optimizer.step(closure)
