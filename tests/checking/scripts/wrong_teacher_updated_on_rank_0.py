# finds: note: replicas part: .* differs between ranks at the end, in a model that no optimizer steps

import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
student, teacher = DistributedDataParallel(net()), net().requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for x, y in batches(rank, n):
    scores = student(x)
    optimizer.zero_grad()
    (F.cross_entropy(scores, y) + F.mse_loss(scores, teacher(x))).backward()
    optimizer.step()
    if rank == 0:
        for p, q in zip(teacher.parameters(), student.module.parameters(), strict=True):
            p.lerp_(q.detach(), 0.1)
