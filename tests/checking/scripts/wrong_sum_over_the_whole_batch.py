# finds: gradient is not the mean: .*1/3 of the mean

import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = DDP(net(3))
samples, sampler = loader(classes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in samples:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y, reduction="sum") / (len(x) * n)
    loss.backward()
    optimizer.step()
