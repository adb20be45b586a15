import torch
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

begin()
torch.manual_seed(0)
model = DDP(net())
opt = torch.optim.SGD(model.parameters(), 0.01)
train, s = loader(data())
noise = torch.Generator().manual_seed(99)
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.001 * torch.randn(p.shape, generator=noise))
