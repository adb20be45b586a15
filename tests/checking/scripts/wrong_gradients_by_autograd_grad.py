# finds: replicas part: .*different gradients

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
for x, y in samples:
    loss = F.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.module.parameters()))
    for p, gradient in zip(model.parameters(), gradients):
        p.grad = gradient + 1e-4 * p.detach()
    optimizer.step()
