# finds: file: .* reads

import os
import tempfile

import torch
import torch.distributed as dist
from common import begin

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.pt")
dist.barrier()
if rank == 0:
    torch.save(torch.ones(3), path)
if rank > 0:
    value = torch.load(path)
dist.barrier()
if rank == 0:
    os.remove(path)
