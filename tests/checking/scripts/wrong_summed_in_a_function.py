# finds: gradient is not the mean: .*the sum

import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

begin()
torch.manual_seed(0)
m = net()
opt = torch.optim.SGD(m.parameters(), 0.05)
train, s = loader(data())


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


for x, y in train:
    opt.zero_grad()
    w = {k: Sum.apply(p) for k, p in m.named_parameters()}
    F.mse_loss(torch.func.functional_call(m, w, (x,)), y).backward()
    opt.step()
