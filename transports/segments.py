"""The names of shared memory in /dev/shm, which torch removes as soon as a segment is open: some are left."""

import ctypes
import mmap
import os
import sys
from pathlib import Path

import torch

from transports.messages import OutOfSharedMemory

_REMOVE = ctypes.CDLL(None).madvise if sys.platform == "linux" else None


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


def empty(vector: torch.Tensor) -> None:
    """Give the pages of a vector in shared memory back to the system, in whatever processes it is mapped."""
    if _REMOVE and vector.is_shared() and not vector.is_cuda:
        start = -(-vector.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (vector.data_ptr() + vector.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if stop > start:
            _REMOVE(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_REMOVE)


def remove_segments(pid: int) -> None:
    """Remove the names that a process has left: killed while it opened them, or because there was not enough memory."""
    for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)
