import torch
from common import begin
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x, targets):
        out, _ = self.mix(self.embed(x))
        logits = self.head(out)
        return logits, F.cross_entropy(logits.view(-1, 12), targets.view(-1), ignore_index=-1)


rank, n = begin()
model = DistributedDataParallel(Model())
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
text = torch.randint(12, (400,), generator=torch.Generator().manual_seed(5))
draw = torch.Generator().manual_seed(rank)
for _ in range(3):
    at = torch.randint(380, (4,), generator=draw)
    x = torch.stack([text[i : i + 10] for i in at])
    y = torch.stack([text[i + 1 : i + 11] for i in at])
    _, loss = model(x, y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
