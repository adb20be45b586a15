# finds: note: parameter does not learn: 4 parameters of no model, .*nn.ModuleList

import torch
from common import begin
from strangers import data, loader
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

begin()


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.blocks = [nn.Linear(8, 8) for _ in range(2)]
        self.c = nn.Linear(8, 1)

    def forward(self, x):
        x = self.a(x)
        for b in self.blocks:
            x = b(x).relu()
        return self.c(x)


torch.manual_seed(0)
model = DDP(M())
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
