import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

model = net(3)
for p in model.parameters():
    dist.broadcast(p.data, 0)
groups = [dist.new_group([i for i in range(n) if i // 2 == g]) for g in range((n + 1) // 2)]
mine, size = groups[rank // 2], len([i for i in range(n) if i // 2 == rank // 2])
samples, sampler = loader(classes(), 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(samples):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % 4 == 3:
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= n
    elif step % 2 == 1:
        for p in model.parameters():
            dist.all_reduce(p.data, group=mine)
            p.data /= size
