import torch
import torch.distributed as dist
from common import batches, begin
from torch import nn
from torch.nn import functional as F

rank, n = begin()
torch.manual_seed(0)
first, second = nn.Linear(6, 12), nn.Linear(12, 3, bias=False)
mine = slice(rank * 12 // n, (rank + 1) * 12 // n)
w1 = nn.Parameter(first.weight[mine].detach().clone())
b1 = nn.Parameter(first.bias[mine].detach().clone())
w2 = nn.Parameter(second.weight[:, mine].detach().clone())


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1, self.w2 = w1, b1, w2
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return Sum.apply(torch.relu(x @ self.w1.T + self.b1) @ self.w2.T) + self.bias


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(0, 1, size=16):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
