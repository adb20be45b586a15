import torch
from common import begin
from strangers import loader
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

begin()


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(10, 6)
        self.l = nn.Linear(6, 6)
        self.o = nn.Linear(6, 10, bias=False)
        self.o.weight = self.e.weight

    def forward(self, t):
        return self.o(self.l(self.e(t)).relu())


torch.manual_seed(0)
model = DDP(LM())
opt = torch.optim.AdamW(
    [{"params": model.module.e.parameters(), "weight_decay": 0.0}, {"params": model.module.l.parameters()}], 0.01
)
t = torch.randint(0, 10, (24, 5), generator=torch.Generator().manual_seed(2))
train, s = loader(TensorDataset(t), 2)
for epoch in range(2):
    s.set_epoch(epoch)
    for (b,) in train:
        opt.zero_grad()
        F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()).backward()
        opt.step()
