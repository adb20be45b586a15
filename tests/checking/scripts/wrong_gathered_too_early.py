# finds: buffer under way: .*reads

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
parts = [torch.empty(3) for _ in range(n)]
work = dist.all_gather(parts, torch.full((3,), float(rank)), async_op=True)
mean = torch.stack(parts).mean()
work.wait()
