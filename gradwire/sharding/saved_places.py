"""What autograd keeps of gathered parameters for the backward pass: not their memory, but where they lie in a block."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from typing_extensions import override

from gradwire.core.records.recorder import Recorder
from gradwire.sharding.block_observer import BlockObserver
from gradwire.sharding.blocks import Block


class SavedPlaces(BlockObserver):
    """In a forward pass, has autograd keep a place for each tensor in a gathered block, and other tensors as they are.

    `observer` gathers and frees the blocks. When the backward pass needs a tensor, it is told that it enters the block.
    """

    def __init__(self, blocks: Sequence[Block], observer: BlockObserver, recorder: Recorder) -> None:
        self._blocks, self._observer, self._recorder = blocks, observer, recorder
        self._hooks: saved_tensors_hooks | None = None  # while a forward pass is under way

    @override
    def begin_forward(self) -> None:
        self._observer.begin_forward()
        self._start()

    @override
    def enter(self, block: Block) -> None:
        if self._hooks is None:  # a checkpoint computes it once more
            self._observer.enter_backward(block)
        else:
            with self._paused():
                self._observer.enter(block)

    @override
    def leave(self, block: Block) -> None:
        with self._paused():
            self._observer.leave(block)

    @override
    def end_forward(self) -> None:
        self.stop_saving()
        self._observer.end_forward()

    @override
    def stop_saving(self) -> None:
        if self._hooks:
            self._hooks.__exit__()
        self._hooks = None

    @override
    def enter_backward(self, block: Block) -> None:
        self._observer.enter_backward(block)

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
        self._observer.enter_backward(block)
        assert block.vector is not None
        return block.vector.as_strided(*place)

    def _start(self) -> None:
        self._hooks = saved_tensors_hooks(self.save, lambda saved: saved() if callable(saved) else saved)
        self._hooks.__enter__()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """In virtual time, where other ranks of this thread may have their turns: leave to each what autograd keeps."""
        if self._recorder.time_passes and self._hooks:
            self.stop_saving()
            yield
            self._start()
        else:
            yield
