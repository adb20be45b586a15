# finds: replicas part: .*states of the optimizers

import torch
from common import begin
from strangers import data, loader, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rank, _ = begin()
torch.manual_seed(0)
model = net()
warm = None
if rank == 0:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    F.mse_loss(model(torch.ones(4, 6)), torch.zeros(4, 1)).backward()
    optimizer.step()
    warm = optimizer.state_dict()
    weights = model.state_dict()
    model = net()
    model.load_state_dict(weights)
opt = torch.optim.Adam(model.parameters(), lr=0.01)
if warm:
    opt.load_state_dict(warm)
model = DDP(model)
train, s = loader(data())
for epoch in range(2):
    s.set_epoch(epoch)
    for x, y in train:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
