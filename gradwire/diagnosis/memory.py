"""The memory of a rank: the bytes of its live tensor storages by kind, counted at allocation and release.

A storage is counted once, however many tensors are views of it, from the operation that returns it until it is freed:
on the CPU, on a GPU and on the meta device. It does not see memory that an operation allocates and
frees inside itself, that an allocator caches, that torch.tensor makes of numbers, or that is no tensor. Nothing here
depends on time: the same run has the same numbers.

The kind of a storage is that of the innermost `Recorder.holding` block in which it was made, else that of the phase:
see `OF_PHASES`. The state of an optimizer is found after its step, a parameter's `.grad` when it is complete.
"""

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves

from gradwire.core.records.observer import Observer
from gradwire.core.records.recorder import Recorder
from gradwire.diagnosis import memory_use as kinds
from gradwire.diagnosis.memory_use import KINDS, Curve, MemoryUse

UNCOUNTED = ""  # of messages under way: they count when they are received
OF_PHASES = {
    "forward": kinds.ACTIVATIONS, "backward": kinds.ACTIVATIONS, "compress": kinds.CODECS, "update": kinds.TEMPORARIES,
}  # fmt: skip

_current: ContextVar["Memory | None"] = ContextVar("memory", default=None)  # of the rank: a thread or a greenlet
_all: list["Memory"] = []  # of this process
_blocks: dict[int, "_Block"] = {}  # by the address of a storage
_RESIZE = torch.UntypedStorage.resize_
_mode = threading.local()  # modes belong to threads, and greenlets of one thread share them


@dataclass(slots=True)
class _Block:
    memory: "Memory"
    kind: str
    nbytes: int
    born: int  # the number of changes before
    ref: Any  # which ends the block with its storage


class Memory(Observer):
    """Counts the memory of one rank while it is entered; it observes `recorder`, which reports the rank's phases."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._kind, self._phase = kinds.OTHER, ""
        self._trains = False
        self.live = Counter[str]()
        self.total = self._changes = self._peak_at = self._peak_of_step = self._peak_of_curve = 0
        self._peak = MemoryUse(0, "", {}, {})
        self._most = Counter[str]()
        self._curve: Curve | None = None
        self._step: Curve | None = None

    def __enter__(self) -> "Memory":
        self._before = _current.set(self)
        torch.UntypedStorage.resize_ = _resize  # type: ignore[assignment,method-assign]
        _all.append(self)
        self._recorder.observers.append(self)
        if not getattr(_mode, "users", 0):
            _mode.users, _mode.watch = 0, _Watch()
            _mode.watch.__enter__()
        _mode.users += 1
        self._hook = register_optimizer_step_post_hook(_find_state)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
        _mode.users -= 1
        if not _mode.users:
            _mode.watch.__exit__(None, None, None)
        self._recorder.observers.remove(self)
        _all.remove(self)
        if not _all:
            torch.UntypedStorage.resize_ = _RESIZE  # type: ignore[method-assign]
        _current.reset(self._before)

    # Called by a rank

    @contextmanager
    def holding(self, kind: str) -> Iterator[None]:
        """Count allocations in the block as of this kind."""
        before, self._kind = self._kind, kind
        try:
            yield
        finally:
            self._kind = before

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """In the block, the rank is in this phase."""
        before, self._phase = self._phase, name
        with self.holding(OF_PHASES.get(name, kinds.OTHER)):
            try:
                yield
            finally:
                self._phase = before

    def hold(self, tensor: torch.Tensor, kind: str) -> None:
        """Count a tensor's storage as of this kind from here on, unless it is another rank's."""
        storage = _own_part(tensor).untyped_storage()
        block = _blocks.get(storage._cdata)
        if block is None:
            self._begin(storage, kind)
        elif block.memory is self and block.kind != kind:
            if block.born <= self._peak_at:  # it was that kind at the peak already, which could not be known
                by_kind = {**self._peak.at_peak, kind: self._peak.at_peak.get(kind, 0) + block.nbytes}
                by_kind[block.kind] -= block.nbytes
                self._peak = replace(self._peak, at_peak={name: n for name in KINDS if (n := by_kind.get(name))})
            self._change(block.kind, -block.nbytes)
            block.kind = kind
            self._change(kind, block.nbytes, moved=True)

    def in_thread(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return the function that a thread of this rank calls in place of `call`."""

        def count() -> None:
            with _Watch():
                _current.set(self)
                call()

        return count

    def watch(self, model: torch.nn.Module) -> None:
        """Count the parameters of a model, and each `.grad` as soon as a backward pass has completed it."""
        for parameter in model.parameters():
            self.hold(parameter, kinds.PARAMETERS)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._hold_gradient)

    def _hold_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout is torch.strided:
            self.hold(parameter.grad, kinds.GRADIENTS)

    def receive(self, message: Any, in_place: bool) -> None:
        """Count the memory of a received message; `in_place`: it is the sender's, if that wants it back."""
        give_back = message._give_back
        if message.tensor is None:
            return
        if give_back is None:
            self.hold(message.tensor, kinds.MESSAGES)
        elif not in_place:  # memory that is used for one message after the other
            self._change(kinds.MESSAGES, message.nbytes)

            def released() -> None:
                self._change(kinds.MESSAGES, -message.nbytes)
                give_back()

            message._give_back = released

    def begin_training(self) -> None:
        """From here on, find the peak."""
        if not self._trains:
            self._trains = True
            self._note_peak()
            self._most.update(self.live)

    def begin_step(self) -> None:
        """A step begins here, and the one before it has ended."""
        self.end_step()
        self._step, self._peak_of_step = Curve(dict(self.live), []), self.total

    def end_step(self) -> None:
        """The last step has ended."""
        if self._step and self._peak_of_step >= self._peak_of_curve:
            self._curve, self._peak_of_curve = self._step, self._peak_of_step
        self._step = None

    def use(self) -> MemoryUse:
        """Return the memory use since `begin_training`."""
        most = {kind: n for kind in KINDS if (n := self._most[kind]) and kind != kinds.TEMPORARIES}
        return replace(self._peak, most=most, curve=self._curve)

    # Counting

    def _begin(self, storage: torch.UntypedStorage, kind: str) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        _blocks[key] = _Block(self, kind, nbytes, self._changes + 1, weakref.ref(storage, partial(_end, key)))
        self._change(kind, nbytes)

    def allocated(self, storage: torch.UntypedStorage) -> None:
        """Count the results of an operation."""
        if self._kind != UNCOUNTED:
            self._begin(storage, self._kind)

    def _change(self, kind: str, nbytes: int, moved: bool = False) -> None:
        self._changes += 1
        self.live[kind] += nbytes
        self.total += nbytes
        if not self._trains or self._recorder.is_evaluating:
            return
        if self._step:
            self._step.changes.append((self._phase, kind, nbytes))
        self._peak_of_step = max(self._peak_of_step, self.total)
        self._most[kind] = max(self._most[kind], self.live[kind])
        if nbytes > 0 and not moved and self.total >= self._peak.peak:
            self._note_peak()

    def _note_peak(self) -> None:
        by_kind = {kind: n for kind in KINDS if (n := self.live[kind])}
        self._peak, self._peak_at = MemoryUse(self.total, self._phase, by_kind, {}), self._changes


def _resize(storage: Any, size: int) -> Any:
    """As FSDP frees a storage and fills it again."""
    _RESIZE(storage, size)
    if block := _blocks.get(storage._cdata):
        block.memory._change(block.kind, storage.nbytes() - block.nbytes)
        block.nbytes = storage.nbytes()
    return storage


def _end(key: int, _: object) -> None:
    block = _blocks.pop(key)
    block.memory._change(block.kind, -block.nbytes)


def _find_state(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if memory := _current.get():
        for parameter, state in optimizer.state.items():
            if isinstance(parameter.grad, torch.Tensor):
                block = _blocks.get(_own_part(parameter.grad).untyped_storage()._cdata)
                if block and block.kind == kinds.ACTIVATIONS:  # FSDP has put it there, without autograd
                    memory.hold(parameter.grad, kinds.GRADIENTS)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    memory.hold(value, kinds.STATE)


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class _Watch(TorchDispatchMode):
    """Sees the operations of this thread, and counts each storage that they return for the rank that runs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented  # its calls on the tensors that it is made of are seen
        result = func(*args, **(kwargs or {}))
        # On a GPU a thread of autograd's own computes the backward pass: it has no context, and the process one rank.
        memory = _current.get() or (_all[0] if len(_all) == 1 else None)
        if memory is None:
            return result
        # A result with an alias is a view, or was written in place: perhaps in another rank's memory.
        returns = func._schema.returns
        values = (result,) if len(returns) == 1 else result or ()
        for what, value in zip(returns, values, strict=True):
            if what.alias_info is None:
                for leaf in (value,) if isinstance(value, torch.Tensor) else tree_leaves(value):
                    if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                        storage = leaf.untyped_storage()
                        if storage._cdata not in _blocks:
                            memory.allocated(storage)
        return result
