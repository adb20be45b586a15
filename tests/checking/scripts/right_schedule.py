import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
for x, y in batches(rank, n):
    optimizer.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    schedule.step()
