# finds: buffer under way: .*reads

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
got = torch.empty(4)
work = dist.broadcast(got.fill_(rank), 0, async_op=True)
print(got.sum().item())
work.wait()
