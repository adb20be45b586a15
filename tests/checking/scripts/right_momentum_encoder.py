import copy

import torch
from common import begin
from strangers import data, loader, net
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rank, _ = begin()
torch.manual_seed(0)
online = net(4)
tgt = copy.deepcopy(online).requires_grad_(False)
pred = nn.Linear(4, 4)
model = DDP(nn.Sequential(online, pred))
opt = torch.optim.SGD(model.parameters(), 0.05)
train, s = loader(data())
torch.manual_seed(rank)
for epoch in range(2):
    s.set_epoch(epoch)
    for x, _ in train:
        a, b = (x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
        loss = 1 - F.cosine_similarity(model(a), tgt(b).detach()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for p, t in zip(online.parameters(), tgt.parameters()):
                t.lerp_(p, 0.05)
