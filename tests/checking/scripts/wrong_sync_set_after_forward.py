# finds: replicas part: .*different gradients

import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = DDP(net(3))
samples, sampler = loader(classes(), 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
batches = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    batches += list(samples)
for step in range(6):
    optimizer.zero_grad()
    for micro in range(2):
        x, y = batches[2 * step + micro]
        model.require_backward_grad_sync = micro == 0
        loss = F.cross_entropy(model(x), y) / 2
        model.require_backward_grad_sync = micro == 1
        loss.backward()
    optimizer.step()
