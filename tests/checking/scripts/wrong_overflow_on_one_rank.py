# finds: replicas part: .*only ranks 0 and 2 took a step

import torch
import torch.distributed as dist
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = DDP(net(1))
samples, sampler = loader(data())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scale = 1024.0
for step, (x, y) in enumerate(samples):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    (scale * loss).backward()
    overflow = step == 1 and rank == 1  # of the activations of this rank
    if overflow:
        scale /= 2
        continue
    for p in model.parameters():
        p.grad /= scale
    optimizer.step()
