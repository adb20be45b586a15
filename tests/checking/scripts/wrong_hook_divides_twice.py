# finds: gradient is not the mean: .*twice

import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

_, n_ranks = begin()


def hook(state, bucket):
    t = bucket.buffer().div_(n_ranks)
    return dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] / n_ranks)


torch.manual_seed(0)
model = DDP(net())
model.register_comm_hook(None, hook)
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
