import torch
from common import begin, dataset, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

rank, n = begin()


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(rank, 60, n):
            yield dataset()[i]


model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Stream(), 5):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
