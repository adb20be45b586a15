import torch
from common import batches, begin, net
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
model = DistributedDataParallel(net())
state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
model.register_comm_hook(state, powersgd.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n, size=4):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
