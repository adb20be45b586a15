# finds: buffer under way: .*writes

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
value = torch.ones(4)
work = dist.isend(value, (rank + 1) % n)
value += 1
got = torch.empty(4)
dist.recv(got, (rank - 1) % n)
work.wait()
