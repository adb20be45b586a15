# finds: buffer under way: .*never waits

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
total = torch.ones(4) * rank
dist.all_reduce(total, async_op=True)
dist.barrier()
