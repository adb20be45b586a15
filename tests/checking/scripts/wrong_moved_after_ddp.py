# finds: replicas part:

import torch
import torch.distributed as dist
from strangers import classes, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

torch.__future__.set_overwrite_module_params_on_conversion(True)
model = DDP(net(3))
model.double()  # another device has the same effect: the parameters are new ones
model.float()
samples, sampler = loader(classes())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in samples:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
torch.__future__.set_overwrite_module_params_on_conversion(False)
