import torch
import torch.distributed as dist
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

_, n_ranks = begin()


class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g / n_ranks


torch.manual_seed(0)
model = net()
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        w = {k: Mean.apply(p) for k, p in model.named_parameters()}
        F.mse_loss(torch.func.functional_call(model, w, (x,)), y).backward()
        opt.step()
