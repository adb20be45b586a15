import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F

_, n_ranks = begin()
torch.manual_seed(0)
model = net()
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            p.grad = fc.wait_tensor(fc.all_reduce(p.grad, "sum", dist.group.WORLD)) / n_ranks
        opt.step()
