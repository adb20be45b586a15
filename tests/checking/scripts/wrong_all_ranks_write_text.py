# finds: file: ranks 0, 1 and 2 write

import os
import tempfile

import torch.distributed as dist
from common import begin

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.txt")
with open(path, "w") as file:
    file.write(str(rank))
dist.barrier()
if rank == 0:
    os.remove(path)
