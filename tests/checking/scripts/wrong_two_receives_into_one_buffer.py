# finds: buffer under way:

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
got = torch.zeros(4)
if rank == 0:
    works = [dist.irecv(got, other) for other in range(1, n)]
    for work in works:
        work.wait()
else:
    dist.send(torch.ones(4), 0)
