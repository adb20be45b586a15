import torch
import torch.distributed as dist
from common import begin
from torch import nn
from torch.nn import functional as F

rank, n = begin()
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(3):
    x, y = torch.randint(20, (8, 3)), torch.randint(3, (8,))
    for _ in range(2):
        (F.cross_entropy(model(x), y) / 2).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(n)
    optimizer.step()
    optimizer.zero_grad()
