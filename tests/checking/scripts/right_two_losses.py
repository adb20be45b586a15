import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss = loss + 1e-3 * (out**2).mean()
    loss.backward()
    optimizer.step()
