"""The names of shared memory in /dev/shm, which torch removes as soon as a segment is open: some are left."""

import os
from pathlib import Path

import torch

from transports.messages import OutOfSharedMemory


def share(vector: torch.Tensor) -> torch.Tensor:
    """Move a vector to shared memory; that of a GPU is shared as it is. Raises OutOfSharedMemory."""
    try:
        return vector if vector.is_cuda else vector.share_memory_()
    except RuntimeError as error:
        remove_segments(os.getpid())
        raise OutOfSharedMemory(
            f"no shared memory left for {vector.nbytes / 1e6:.0f} MB (see df /dev/shm; in Docker, --shm-size 2g): "
            f"{' '.join(str(error).split())[:200]}"
        ) from error


def remove_segments(pid: int) -> None:
    """Remove the names that a process has left: killed while it opened them, or because there was not enough memory."""
    for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)
