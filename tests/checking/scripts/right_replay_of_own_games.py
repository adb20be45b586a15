import copy

import torch
from common import begin
from strangers import net
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

rank, _ = begin()
torch.manual_seed(0)
q = DDP(net(3))
target = copy.deepcopy(q.module)
opt = torch.optim.Adam(q.parameters(), 0.01)
torch.manual_seed(40 + rank)
replay = []
for step in range(12):
    s0 = torch.randn(6)
    a = q.module(s0[None]).argmax().item() if torch.rand(()) > 0.3 else int(torch.randint(3, ()))
    replay.append((s0, a, torch.randn(()), torch.randn(6)))
    if step >= 4:
        idx = torch.randperm(len(replay))[:4]
        b = [replay[i] for i in idx]
        s0, a, r, s1 = (
            torch.stack([t[0] for t in b]),
            torch.tensor([t[1] for t in b]),
            torch.stack([t[2] for t in b]),
            torch.stack([t[3] for t in b]),
        )
        with torch.no_grad():
            y = r + 0.9 * target(s1).max(1).values
        opt.zero_grad()
        F.smooth_l1_loss(q(s0).gather(1, a[:, None])[:, 0], y).backward()
        opt.step()
    if step % 4 == 0:
        target.load_state_dict(q.module.state_dict())
