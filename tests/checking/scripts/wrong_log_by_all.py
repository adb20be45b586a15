# finds: file: ranks 0, 1 and 2 write

import json
import os
import tempfile

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.json")
value = torch.ones(1) * rank
dist.all_reduce(value)
with open(path, "w") as file:
    json.dump({"loss": value.item()}, file)
dist.barrier()
if rank == 0:
    os.remove(path)
