import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

rank, n = begin()
x, y = dataset().tensors
mine = slice(0, 20) if rank == 0 else slice(20 + 20 * (rank - 1), 30 + 20 * (rank - 1))
data = TensorDataset(x[mine], y[mine])
model = net()
share = torch.tensor(float(len(data)))
total = share.clone()
dist.all_reduce(total)
for _ in range(2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for a, b in DataLoader(data, 5, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(model(a), b).backward()
        optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(share / total)
            dist.all_reduce(p)
