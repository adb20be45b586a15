import torch
import torch.distributed as dist
from common import begin, dataset, net
from torch.nn import functional as F

rank, n = begin()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = dataset().tensors
for step in range(3):
    noise = [
        [
            torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + 10 * r + i))
            for i, p in enumerate(model.parameters())
        ]
        for r in range(n)
    ]
    with torch.no_grad():
        for p, e in zip(model.parameters(), noise[rank]):
            p.add_(0.1 * e)
        score = F.cross_entropy(model(x), y).view(1)
        for p, e in zip(model.parameters(), noise[rank]):
            p.sub_(0.1 * e)
    scores = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(scores, score)
    weights = torch.cat(scores) - torch.cat(scores).mean()
    for i, p in enumerate(model.parameters()):
        p.grad = sum(weights[r] * noise[r][i] for r in range(n)) / n
    optimizer.step()
