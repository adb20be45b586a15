# finds: note: replicas part: 0.weight differs between ranks since step 1 .*no rank shares its gradients

import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    loss = F.cross_entropy(model(x), y)
    with torch.no_grad():
        dist.all_reduce(loss)
        loss /= n
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
