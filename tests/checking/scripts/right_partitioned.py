from random import Random

import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Partition:
    def __init__(self, data, index):
        self.data, self.index = data, index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, index):
        return self.data[self.index[index]]


def partition():
    size, data = dist.get_world_size(), dataset()
    indexes = list(range(len(data)))
    Random(1234).shuffle(indexes)
    part = len(data) // size
    mine = indexes[dist.get_rank() * part : (dist.get_rank() + 1) * part]
    return DataLoader(Partition(data, mine), batch_size=60 // size // 2, shuffle=True)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


begin()
torch.manual_seed(1234)
train_set = partition()
model = net(1234)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
for epoch in range(2):
    epoch_loss = 0.0
    for data, target in train_set:
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(data), 1), target)
        epoch_loss += loss.item()
        loss.backward()
        average_gradients(model)
        optimizer.step()
    print("Rank ", dist.get_rank(), ", epoch ", epoch, ": ", epoch_loss)
