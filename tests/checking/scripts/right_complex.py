import torch
import torch.distributed as dist
from common import begin
from torch import nn

rank, n = begin()
torch.manual_seed(0)
w = nn.Parameter(torch.randn(4, dtype=torch.complex64))
s = nn.Parameter(torch.randn(()))
optimizer = torch.optim.SGD([w, s], lr=0.1)
torch.manual_seed(rank)
for _ in range(3):
    optimizer.zero_grad()
    ((w * torch.randn(4)).abs().sum() * s).backward()
    for p in (w, s):
        g = torch.view_as_real(p.grad) if p.is_complex() else p.grad
        dist.all_reduce(g)
        g /= n
    optimizer.step()
