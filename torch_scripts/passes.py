"""The time that a script's forward and backward passes take on a virtual machine.

With a given time, a third passes in the forward pass, two thirds in the backward pass: to each module, or gradient, the
part that it has of all elements whose gradients are computed. Otherwise the seconds of the rank's own thread pass.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from torch_scripts.virtual import VirtualRank


class Passes:
    """The passes of one rank; `seconds` of both together, None: those of its thread."""

    def __init__(self, rank: VirtualRank, seconds: float | None) -> None:
        self._rank, self._seconds = rank, seconds
        self._elements = 0  # whose gradients the last backward pass has computed
        self._done = 0.0  # of the pass that goes on

    def forward(self, module: nn.Module) -> None:
        """Let the time pass in which a module computes, if its parameters have had gradients before."""
        if self._seconds is not None and self._elements and torch.is_grad_enabled():
            own = sum(p.numel() for p in module.parameters(recurse=False) if p.requires_grad)
            self._spend(1 / 3, own, self._elements)

    def backward(self, run: Callable[[], Any], outputs: Iterable[torch.Tensor]) -> Any:
        """Run a backward pass from these tensors on, and let its time pass."""
        rank = self._rank
        rank.pass_time()
        handles: list[Any] = []
        if self._seconds is not None:
            self._finish(1 / 3)
            leaves = _leaves(outputs)
            self._elements = sum(leaf.variable.numel() for leaf in leaves)
            for leaf in leaves:
                own = leaf.variable.numel()
                handles.append(leaf.register_prehook(lambda _, own=own: self._spend(2 / 3, own, self._elements)))
        rank.show("forward")
        rank.phase = "backward"
        try:
            return run()
        finally:
            for handle in handles:
                handle.remove()
            rank.pass_time()
            if self._seconds is not None:
                self._finish(2 / 3)
            rank.show("backward")
            rank.phase = "forward"
            rank.recorder.step += 1
            rank.passes.append(rank.clock)

    def _spend(self, part: float, own: int, of_all: int) -> None:
        assert self._seconds is not None
        spent = min(self._seconds * part * own / of_all if of_all else 0.0, self._seconds * part - self._done)
        self._done += spent
        self._rank.clock += spent

    def _finish(self, part: float) -> None:
        assert self._seconds is not None
        self._rank.clock += max(0.0, self._seconds * part - self._done)
        self._done = 0.0


def _leaves(outputs: Iterable[torch.Tensor]) -> list[Any]:
    """Return the nodes of the graph behind these tensors that accumulate gradients."""
    seen, leaves = set(), []
    nodes = [getattr(output, "grad_fn", None) for output in outputs]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node)
        nodes.extend(following for following, _ in node.next_functions)
    return leaves
