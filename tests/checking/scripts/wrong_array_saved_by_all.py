# finds: file: ranks 0, 1 and 2 write

import os
import tempfile

import numpy as np
import torch.distributed as dist
from common import begin

rank, n = begin()
path = os.path.join(tempfile.gettempdir(), f"gradwire-check-{os.getpid()}.npy")
np.save(path, np.ones(3))
dist.barrier()
if rank == 0:
    os.remove(path)
