import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net(seed=rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(0, 1, size=20):
    out = model(x)
    every = [torch.empty(len(x), 3) for _ in range(n)]
    dist.all_gather(every, out.detach().softmax(1))
    others = sum(every[r] for r in range(n) if r != rank) / (n - 1)
    optimizer.zero_grad()
    (F.cross_entropy(out, y) + F.kl_div(out.log_softmax(1), others, reduction="batchmean")).backward()
    optimizer.step()
