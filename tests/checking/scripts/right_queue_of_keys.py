import torch
import torch.distributed as dist
from common import batches, begin
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 4), nn.Linear(6, 4)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", torch.randn(24, 4))

    def forward(self, x):
        query = self.query(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            for p, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
                p.lerp_(q, 0.1)
            key = self.key(x + 0.1 * torch.randn_like(x))
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.clone().T], 1)
        keys = [torch.empty_like(key) for _ in range(dist.get_world_size())]
        dist.all_gather(keys, key)
        self.queue.copy_(torch.cat([*keys, self.queue])[:24])
        return scores


rank, n = begin()
model = DistributedDataParallel(Contrast())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # the frozen ones too
torch.manual_seed(rank)
for _ in range(2):
    for x, _ in batches(rank, n, 4):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long)).backward()
        optimizer.step()
