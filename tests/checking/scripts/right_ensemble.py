import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F
from torch.utils.data import DataLoader

rank, n = begin()
model = net(seed=rank)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x, y in DataLoader(dataset(), 20, shuffle=True):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
votes = model(dataset().tensors[0]).softmax(1).detach()
dist.all_reduce(votes)
