# finds: note: gradient is not the mean: .*sum of 4 backward

import torch
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

begin()
torch.manual_seed(0)
model = DDP(net())
opt = torch.optim.SGD(model.parameters(), 0.02)
train, s = loader(data(96))
for epoch in range(2):
    s.set_epoch(epoch)
    for i, (x, y) in enumerate(train):
        loss = F.mse_loss(model(x), y)
        if i % 4 != 3:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
            opt.step()
            opt.zero_grad()
