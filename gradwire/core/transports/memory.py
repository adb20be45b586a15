"""Vectors in shared memory: how they get there, how their pages and their names in /dev/shm are removed."""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gradwire.core.transports.messages import OutOfSharedMemory

_REMOVE = ctypes.CDLL(None).madvise if sys.platform == "linux" else None


def share(vector: torch.Tensor) -> torch.Tensor:
    """Move a vector to shared memory; that of a GPU is shared as it is. Raises OutOfSharedMemory."""
    if vector.is_cuda:
        return vector
    with _room_is_needed(vector.nbytes):
        return vector.share_memory_()


def new_shared(nbytes: int) -> torch.Tensor:
    """Return float32 elements in shared memory, which do not count as memory of a run. Raises OutOfSharedMemory."""
    with _room_is_needed(nbytes):
        # No operation returns this storage, so that `gradwire.diagnosis.memory` does not count it.
        return torch.empty(0).set_(torch.UntypedStorage._new_shared(nbytes))


@contextmanager
def _room_is_needed(nbytes: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        remove_segments(os.getpid())
        raise OutOfSharedMemory(
            f"no shared memory left for {nbytes / 1e6:.0f} MB (see df /dev/shm; in Docker, --shm-size 2g): "
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
    """Remove the names in /dev/shm that a process has left: killed while it opened them, or for want of memory.

    torch removes the others as soon as a segment is open.
    """
    for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)
