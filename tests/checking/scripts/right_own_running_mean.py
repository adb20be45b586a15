import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

begin()


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        if self.training:
            t = x.detach().sum(0)
            c = torch.tensor(float(len(x)))
            dist.all_reduce(t)
            dist.all_reduce(c)
            self.mean += (t / c - self.mean) * c / (self.n + c)
            self.n += c
        return x - self.mean


torch.manual_seed(0)
model = DDP(nn.Sequential(Norm(), net()), broadcast_buffers=False)
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
