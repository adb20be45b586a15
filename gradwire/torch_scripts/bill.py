"""The seconds that the passes of a rank take in virtual time, by the floating-point operations that they compute."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from typing_extensions import override


class Bill(ABC):
    """Passes the time of what a rank computes to `spend`."""

    def __init__(self, spend: Callable[[float], None]) -> None:
        self.spend = spend

    @abstractmethod
    def count(self, flops: int) -> None:
        """Called after each operation."""

    @abstractmethod
    def begin(self, module: nn.Module, is_first: bool) -> None:
        """Called before each call of a module from outside of any; `is_first`: no graph leads to its inputs."""

    @abstractmethod
    def end(self) -> None:
        """Called after such a call."""

    @abstractmethod
    def backward(self, graph: "Graph", is_whole: bool, has_graph: bool) -> AbstractContextManager[None]:
        """Bill the backward pass of the block; `has_graph`: it makes a graph itself."""


class ByRate(Bill):
    """All operations take time, at so many a second."""

    def __init__(self, spend: Callable[[float], None], rate: float) -> None:
        super().__init__(spend)
        self._rate = rate

    @override
    def count(self, flops: int) -> None:
        self.spend(flops / self._rate)

    @override
    def begin(self, module: nn.Module, is_first: bool) -> None:
        pass

    @override
    def end(self) -> None:
        pass

    @override
    def backward(self, graph: "Graph", is_whole: bool, has_graph: bool) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class Call:
    """A forward pass: a call of a module from outside of any module, or what is computed between two of these.

    `begun`, `ended`: the sequence numbers of its nodes in the graph. `seconds`: what it was billed.
    """

    module: nn.Module
    begun: int
    ended: int = -1
    flops: int = 0
    seconds: float = 0.0


class ByPass(Bill):
    """A forward and backward pass take `seconds`, one third and two thirds of it; each operation has its part.

    The part of an operation is known from the pass before. The first call of a module is billed when it ends. A
    backward pass to all leaves of its graph takes what its forward passes have left of `seconds`. Another one, such as
    the half that computes the gradients of the inputs, and a forward pass that is computed again within a backward
    pass, take the parts of their operations.
    """

    def __init__(self, spend: Callable[[float], None], seconds: float) -> None:
        super().__init__(spend)
        self._seconds = seconds
        self._rates: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()  # seconds of an operation
        self._backward_flops: dict[frozenset[int], int] = {}  # of a backward pass through the calls of these modules
        self._between = nn.Module()  # stands for what is computed outside of modules
        self._calls: list[Call] = []  # whose graphs may be alive, in their order
        self._call: Call | None = None
        self._last = 0  # the sequence number at which the last call ended
        self._in_backward: Callable[[int], None] | None = None

    @override
    def begin(self, module: nn.Module, is_first: bool) -> None:
        if self._in_backward is None:
            self.end()
            self._call = Call(module, _sequence_number())
            if not is_first and module not in self._rates:
                self._rates[module] = 0.0  # until a backward pass tells what belongs together

    @override
    def end(self) -> None:
        if (call := self._call) is None or self._in_backward is not None:
            return
        self._call, call.ended = None, _sequence_number()
        self._last = call.ended
        if call.flops and call.ended > call.begun:
            self._calls.append(call)
            if call.module not in self._rates:
                self._bill(call, self._seconds / 3)
                self._rates[call.module] = call.seconds / call.flops

    @override
    def count(self, flops: int) -> None:
        if self._in_backward is not None:
            self._in_backward(flops)
            return
        if self._call is None and torch.is_grad_enabled():
            self._call = Call(self._between, self._last)
            self._rates.setdefault(self._between, 0.0)
        if self._call is not None:
            self._call.flops += flops
            self._bill(self._call, self._rates.get(self._call.module, 0.0) * flops)

    @override
    @contextmanager
    def backward(self, graph: "Graph", is_whole: bool, has_graph: bool) -> Iterator[None]:
        self.end()
        calls = [call for call in self._calls if graph.has_between(call.begun, call.ended)]
        flops = sum(call.flops for call in calls)
        rate = next((rate for call in reversed(calls) if (rate := self._rates[call.module])), 0.0)
        rate = rate or (self._seconds / 3 / flops if flops else 0.0)
        key = frozenset(id(call.module) for call in calls)
        left = max(0.0, self._seconds - sum(call.seconds for call in calls)) if is_whole else float("inf")
        part = left / max(self._backward_flops.get(key, 2 * flops), 1) if is_whole else rate
        done, computed = 0.0, 0

        def count(flops: int) -> None:
            nonlocal done, computed
            if torch.is_grad_enabled() and not has_graph:  # a checkpoint computes its forward pass again
                self.spend(rate * flops)
                return
            seconds = min(part * flops, left - done)
            done, computed = done + seconds, computed + flops
            self.spend(seconds)

        def end() -> None:
            nonlocal done
            self.spend(left - done)
            done = left

        self._in_backward = count
        try:
            with graph.at_last_leaf(end) if is_whole else nullcontext():
                yield
        finally:
            self._in_backward = None
            self._last = _sequence_number()
        if is_whole:
            end()
            if key not in self._backward_flops:
                self._rates |= {call.module: self._seconds / 3 / flops for call in calls}
            self._backward_flops[key] = computed
            self._calls = [call for call in self._calls if call not in calls]

    def _bill(self, call: Call, seconds: float) -> None:
        call.seconds += seconds
        self.spend(seconds)


class Operations(TorchDispatchMode):
    """Tells a bill of the operations of its thread."""

    def __init__(self, bill: Bill) -> None:
        super().__init__()
        self._bill = bill

    @override
    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls the operations of its part
        result = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self._bill.count(count(*args, **(kwargs or {}), out_val=result))
        return result


class Graph:
    """The graph behind some tensors or edges."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        nodes = {output.grad_fn if isinstance(output, torch.Tensor) else output.node for output in outputs}
        seen = set[Any]()
        while nodes := nodes - seen - {None}:
            seen |= nodes
            nodes = {following for node in nodes if node for following, _ in node.next_functions}
        self._leaves = [node for node in seen if hasattr(node, "variable")]
        self._numbers = sorted(node._sequence_nr() for node in seen)

    def has_between(self, begun: int, ended: int) -> bool:
        """Return whether a node of it was made when the sequence number was between these."""
        i = bisect_left(self._numbers, begun)
        return i < len(self._numbers) and self._numbers[i] < ended

    def ends_at(self, inputs: Sequence[Any]) -> bool:
        """Return whether all its leaves are among these tensors or edges."""
        given = (end if isinstance(end, torch.Tensor) else getattr(end.node, "variable", None) for end in inputs)
        return {id(leaf.variable) for leaf in self._leaves} <= {id(tensor) for tensor in given}

    @contextmanager
    def at_last_leaf(self, call: Callable[[], None]) -> Iterator[None]:
        """Call this when the backward pass of the block has come to all leaves."""
        reached = 0

        def reach(_: Any) -> None:
            nonlocal reached
            reached += 1
            if reached == len(self._leaves):
                call()

        handles = [leaf.register_prehook(reach) for leaf in self._leaves]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _sequence_number() -> int:
    """Return that of the next node which this thread makes."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number
