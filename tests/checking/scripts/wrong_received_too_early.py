# finds: buffer under way: .*reads

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
got = torch.zeros(4)
work = dist.irecv(got, (rank - 1) % n)
sent = dist.isend(torch.ones(4), (rank + 1) % n)
total = got + 1
work.wait()
sent.wait()
