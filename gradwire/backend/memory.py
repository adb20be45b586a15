"""Memory that other ranks map without asking this one: a file without a name, which they open by /proc."""

import os
import pickle
from typing import Any
from weakref import ref

import torch

from gradwire.core.transports.messages import OutOfSharedMemory

_Storage: Any = torch.UntypedStorage  # whose stub lacks what is used here


class Lent:
    """Memory of the user's own that was moved to shared memory, as long as a tensor of the user's has it."""

    def __init__(self, storage: torch.UntypedStorage, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._of = ref(storage)  # not torch's StorageWeakRef, which keeps the memory
        shared: Any = storage
        number, self._nbytes = shared._share_fd_cpu_()[:2]
        self._fd = os.dup(number)

    @property
    def is_over(self) -> bool:
        """Whether no tensor has the memory any longer."""
        return self._of() is None

    def handle(self) -> bytes:
        """Return a pickled handle, by which a peer maps it."""
        return _handle(self._fd, self._nbytes, self.dtype)

    def free(self) -> None:
        """Give the pages back to the system, in whatever processes they are mapped."""
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


class Owned:
    """The memory of vectors that were allocated here."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}  # by address

    def new(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a zeroed vector. Raises OutOfSharedMemory."""
        nbytes = max(1, numel * dtype.itemsize)
        fd = os.memfd_create("gradwire")
        try:
            os.posix_fallocate(fd, 0, nbytes)
            storage = _Storage._new_shared_fd_cpu(fd, nbytes)
        except (OSError, RuntimeError) as error:
            os.close(fd)
            raise OutOfSharedMemory(f"no memory left for {nbytes / 1e6:.0f} MB that ranks share: {error}") from error
        vector = torch.empty(0, dtype=dtype).set_(storage, 0, (numel,), (1,))
        self._files[storage.data_ptr()] = fd, nbytes
        return vector

    def handle(self, vector: torch.Tensor) -> bytes:
        """Return a pickled handle of the memory of a vector, by which a peer maps it."""
        return _handle(*self._files[vector.untyped_storage().data_ptr()], vector.dtype)

    def close(self) -> None:
        """Close the files; who has mapped one keeps it."""
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()


def _handle(fd: int, nbytes: int, dtype: torch.dtype) -> bytes:
    return pickle.dumps(_Mapped(os.getpid(), fd, nbytes, dtype))


class _Mapped:
    """Is unpickled as a vector over the whole memory."""

    def __init__(self, *what: object) -> None:
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return _map, self._what


def _map(pid: int, fd: int, nbytes: int, dtype: torch.dtype) -> torch.Tensor:
    number = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        storage = _Storage._new_shared_fd_cpu(number, nbytes)
    finally:
        os.close(number)
    return torch.empty(0, dtype=dtype).set_(storage, 0, (nbytes // dtype.itemsize,), (1,))
