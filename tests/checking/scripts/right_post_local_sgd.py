import torch
import torch.distributed as dist
from common import batches, begin, net
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
alone = [dist.new_group([r]) for r in range(n)]
state = local.PostLocalSGDState(None, alone[rank], start_localSGD_iter=2)
model.register_comm_hook(state, local.post_localSGD_hook)
optimizer = PostLocalSGDOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), PeriodicModelAverager(period=2, warmup_steps=2)
)
for x, y in batches(rank, n, size=3):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
