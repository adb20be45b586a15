import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
whole = iter(DataLoader(dataset(), 6 * n, shuffle=True, drop_last=True)) if rank == 0 else None
for _ in range(2):
    x, y = torch.empty(6, 6), torch.empty(6, dtype=torch.long)
    both = next(whole) if rank == 0 else None
    dist.scatter(x, list(both[0].chunk(n)) if rank == 0 else None)
    dist.scatter(y, list(both[1].chunk(n)) if rank == 0 else None)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
