"""Two steps of a schedule of torch's pipelines: schedules.py NAME MICROBATCHES; prints the seconds of the second."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

name, m = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
if name in ("ScheduleGPipe", "Schedule1F1B"):
    places, count = [rank], n
else:
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    places, count = [rank, 2 * n - 1 - rank if is_v else n + rank], 2 * n
torch.manual_seed(0)
stages = [
    PipelineStage(nn.Sequential(nn.Linear(8, 8, bias=False)), place, count, torch.device("cpu")) for place in places
]
schedule = getattr(schedules, name)(
    stages[0] if count == n else stages, m, loss_fn=lambda y, target: ((y - target) ** 2).mean()
)
x, target = torch.randn(2 * m, 8), torch.randn(2 * m, 8)
for step in range(2):
    dist.barrier()
    begun = time.perf_counter()
    schedule.step(*([x] if 0 in places else []), **({"target": target} if count - 1 in places else {}))
    dist.barrier()
    if step and rank == 0:
        print(time.perf_counter() - begun)
