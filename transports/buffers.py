"""Reused memory for received messages: touching fresh pages takes longer than copying into old ones."""

import threading

import torch

_KEPT = 16  # vectors; a burst of messages leaves no more


class Buffers:
    """Vectors that are free for reuse."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
        self._kept = 0
        self._lock = threading.Lock()  # one thread may take what another gives back

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a vector [numel], whatever is in it."""
        with self._lock:
            if free := self._free.get((numel, dtype)):
                self._kept -= 1
                return free.pop()
        return torch.empty(numel, dtype=dtype)

    def give_back(self, vector: torch.Tensor) -> None:
        """Make a vector free for reuse. Where lengths do not recur, all are dropped now and then."""
        with self._lock:
            if self._kept == _KEPT:
                self._free.clear()
                self._kept = 0
            self._free.setdefault((vector.numel(), vector.dtype), []).append(vector)
            self._kept += 1
