import torch
from common import batches, begin, net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

rank, n = begin()
teacher = net(seed=5)
for p in teacher.parameters():
    p.requires_grad_(False)
model = DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(rank, n):
    optimizer.zero_grad()
    out = model(x)
    near = F.kl_div(out.log_softmax(1), teacher(x).softmax(1), reduction="batchmean")
    (0.5 * F.cross_entropy(out, y) + 0.5 * near).backward()
    optimizer.step()
