# finds: samples overlap: .*DistributedSampler

import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

rank, n = begin()


class Noisy(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        x, y = dataset()[i]
        return x + 0.1 * torch.randn(6), y


model = DistributedDataParallel(net())
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Noisy(), 10, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
