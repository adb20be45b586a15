# finds: note: samples overlap: .*IterableDataset

import torch
from common import begin
from strangers import data, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

begin()


class Stream(IterableDataset):
    def __iter__(self):
        yield from data()


torch.manual_seed(0)
model = DDP(net())
opt = torch.optim.SGD(model.parameters(), 0.05)
for epoch in range(2):
    for x, y in DataLoader(Stream(), batch_size=4):
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
