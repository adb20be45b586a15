"""Memory that other ranks map without asking this one: a file without a name, which they open by /proc."""

import os
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch

from gradwire.core.transports.messages import OutOfSharedMemory, Work
from gradwire.core.transports.peer import InPlace

_MOST_UNREAD, _MOST_UNREAD_BYTES = 64, 1 << 28  # copies that a rank may be ahead of its peers
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
        self.close()

    def close(self) -> None:
        """Close the file; peers that have mapped it keep the memory."""
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


@dataclass
class Copies:
    """Copies of tensors that peers read, by type and length; one that is read no longer is used again."""

    free: dict[tuple[torch.dtype, int], list[torch.Tensor]] = field(default_factory=dict)
    busy: deque[tuple[Sequence[Work], torch.Tensor]] = field(default_factory=deque)

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return a free copy with room for `numel` elements; None if there is none."""
        self._collect()
        found = self.free.get((dtype, room(numel)))
        return found.pop() if found else None

    def overdue(self) -> Work | None:
        """Return the oldest unread message if a rank is too many copies, or bytes, ahead of its peers; else None."""
        if len(self.busy) <= 1:
            return None
        self._collect()
        nbytes = sum(buffer.nbytes for _, buffer in self.busy)
        if len(self.busy) > _MOST_UNREAD or (len(self.busy) > 1 and nbytes > _MOST_UNREAD_BYTES):
            return next(filter(_is_unread, self.busy[0][0]), None)
        return None

    def _collect(self) -> None:
        for _ in range(len(self.busy)):
            works, buffer = self.busy.popleft()
            if any(map(_is_unread, works)):
                self.busy.append((works, buffer))
            else:
                self.free.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)


def room(numel: int) -> int:
    """Return the length of a buffer for `numel` elements: a power of two."""
    return 1 << (numel - 1).bit_length()


def _is_unread(work: Work) -> bool:
    return isinstance(work, InPlace) and not work._is_done()


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
