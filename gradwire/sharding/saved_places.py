"""What autograd keeps of gathered parameters for the backward pass: not their memory, but where they lie in a block."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from gradwire.core.records.recorder import Recorder
from gradwire.sharding.blocks import Block


class SavedPlaces:
    """While it is on, autograd keeps a place for each tensor in a gathered block, and other tensors as they are.

    `gather` is called for the block when the backward pass needs the tensor.
    """

    def __init__(self, blocks: Sequence[Block], gather: Callable[[Block], None], recorder: Recorder) -> None:
        self._blocks, self._gather, self._recorder = blocks, gather, recorder
        self._hooks: saved_tensors_hooks | None = None

    @property
    def is_on(self) -> bool:
        """Whether a forward pass is under way."""
        return self._hooks is not None

    def start(self) -> None:
        """Begin with a forward pass."""
        self._hooks = saved_tensors_hooks(self.save, lambda saved: saved() if callable(saved) else saved)
        self._hooks.__enter__()

    def stop(self) -> None:
        """Have autograd keep tensors as they are."""
        if self._hooks:
            self._hooks.__exit__()
        self._hooks = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """In virtual time, where other ranks of this thread may have their turns: leave to each what autograd keeps."""
        if self._recorder.time_passes:
            self.stop()
            yield
            self.start()
        else:
            yield

    def save(self, tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        """Return what autograd is to keep."""
        address = tensor.untyped_storage().data_ptr()
        for block in self._blocks:
            if block.vector is not None and block.vector.untyped_storage().data_ptr() == address:
                place = tensor.size(), tensor.stride(), tensor.storage_offset()
                return lambda: self._found(block, *place)
        return tensor

    def _found(self, block: Block, *place: Any) -> torch.Tensor:
        """Return a tensor that was saved, in the memory that its block has now."""
        self._gather(block)
        assert block.vector is not None
        return block.vector.as_strided(*place)
