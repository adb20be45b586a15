import torch
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

begin()
torch.manual_seed(0)
model = DDP(net())
opt = torch.optim.SGD(model.parameters(), 0.05)
for epoch, b in enumerate([2, 4, 8]):
    train, s = loader(data(), b, seed=3)
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
