import torch
from common import batches, begin, net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn import functional as F

rank, n = begin()
for orig in (False, True):
    model = FSDP(net(), use_orig_params=orig, device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in batches(rank, n):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
