"""The blocks of a model in its two passes: callbacks at the begin and end of each, and the place of their tensors."""

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.replica import Replica
from gradwire.sharding import freed
from gradwire.sharding.blocks import Block


class BlockObserver:
    """Callbacks for the forward and backward of a model and its blocks; all are no-ops."""

    def begin_forward(self) -> None:
        """The forward pass of the model begins."""

    def enter(self, block: Block) -> None:
        """The forward pass of a block begins."""

    def leave(self, block: Block) -> None:
        """It has ended."""

    def end_forward(self) -> None:
        """The forward pass of the model has ended."""

    def stop_saving(self) -> None:
        """It has ended by an error."""

    def enter_backward(self, block: Block) -> None:
        """The backward pass of a block begins."""


@singledispatch
def on_blocks(replica: Replica, blocks: Sequence[Block], observer: BlockObserver) -> None:
    """Call `told` for the passes of the model and its blocks, but not for those of evaluation, without gradients."""
    replica.is_watched = True

    def leave(block: Block, outputs: Any) -> None:
        observer.leave(block)
        tensors = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.requires_grad]
        if tensors:
            register_multi_grad_hook(tensors, lambda _: replica.in_backward(observer.enter_backward, block), mode="any")

    def call(function: Callable[..., None], *arguments: Any) -> None:
        if torch.is_grad_enabled():
            with replica.interruption():
                function(*arguments)

    replica.model.register_forward_pre_hook(lambda *_: call(observer.begin_forward))
    for block in blocks:
        block.module.register_forward_pre_hook(lambda *_, block=block: call(observer.enter, block))
        block.module.register_forward_hook(lambda _, __, outputs, block=block: call(leave, block, outputs))
    end = lambda *of: call(observer.stop_saving if of[-1] is None else observer.end_forward)  # noqa: E731 - None: an error
    replica.model.register_forward_hook(end, always_call=True)


def spend_forward(recorder: Recorder, block: Block) -> None:
    """In virtual time: let the time of a block's forward pass pass."""
    for i in block.tensors:
        recorder.spend("forward", i)


@singledispatch
def pop_gradients(replica: Replica, block: Block, out: torch.Tensor) -> None:
    """Copy the gradients of a block's parameters into `out` [n], and forget them; a missing one is -0."""
    for i, view in zip(block.tensors, replica.layout.views(out, block.tensors), strict=True):
        replica.copy_gradient(i, view)
        replica.parameters[i].grad = None


@singledispatch
def bind(replica: Replica, block: Block, vector: torch.Tensor) -> None:
    """Point a block's parameters at `vector` [n], without copying."""
    for i, view in zip(block.tensors, replica.layout.views(vector, block.tensors), strict=True):
        freed.bind(replica.parameters[i], view)


@singledispatch
def unbind(replica: Replica, block: Block) -> None:
    """Point a block's parameters at nothing: they read as NaN."""
    for i in block.tensors:
        freed.unbind(replica.parameters[i], replica.layout.names[i])
