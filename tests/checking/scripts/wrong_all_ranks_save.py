# finds: file: ranks 0, 1 and 2 write

import os
import tempfile

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.pt")
torch.save(torch.ones(3), path)
dist.barrier()
if rank == 0:
    os.remove(path)
