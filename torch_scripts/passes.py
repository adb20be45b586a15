"""The time that a script's forward and backward passes take on a virtual machine.

With a given time, a third passes in the forward pass, two thirds in the backward pass: at each module, or gradient, the
part that it has of all elements whose gradients are computed. Otherwise the seconds of the rank's own thread pass.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from tqdm import tqdm

if TYPE_CHECKING:
    from torch_scripts.virtual import VirtualRank


class Passes:
    """The passes of one rank, which `progress` counts."""

    def __init__(self, rank: "VirtualRank", progress: "tqdm[Any] | None" = None) -> None:
        self._rank, self._progress = rank, progress
        self._seconds = rank.compute or 0.0  # of both passes; 0: they take what the thread takes
        self._elements = 0  # whose gradients the last backward pass has computed
        self._done = 0.0  # seconds of the pass that goes on

    def forward(self, module: nn.Module) -> None:
        """Let the time pass in which a module computes, if it is known which have gradients."""
        if self._seconds and self._elements and torch.is_grad_enabled():
            self._spend(1 / 3, sum(p.numel() for p in module.parameters(recurse=False) if p.requires_grad))

    def backward(self, run: Callable[[], Any], outputs: Iterable[torch.Tensor]) -> Any:
        """Run a backward pass from these tensors on, and let its time pass."""
        rank, leaves = self._rank, _leaves(outputs) if self._seconds else []
        self._end("forward", 1 / 3)
        self._elements = sum(leaf.variable.numel() for leaf in leaves)
        handles = [
            leaf.register_prehook(partial(lambda own, _: self._spend(2 / 3, own), leaf.variable.numel()))
            for leaf in leaves
        ]
        rank.phase = "backward"
        try:
            return run()
        finally:
            for handle in handles:
                handle.remove()
            self._end("backward", 2 / 3)
            rank.phase = "forward"
            rank.recorder.step += 1
            rank.passes.append(rank.clock)
            if self._progress is not None:
                self._progress.set_postfix_str(f"{rank.clock:.3g} virtual s", refresh=False)
                self._progress.update()

    def _spend(self, part: float, own: int) -> None:
        whole = self._seconds * part
        seconds = min(whole * own / max(self._elements, 1), whole - self._done)
        self._done += seconds
        self._rank.clock += seconds

    def _end(self, phase: str, part: float) -> None:
        rank = self._rank
        rank.thread.note()
        rank.pass_time()
        rank.clock += self._seconds * part - self._done
        self._done = 0.0
        rank.show(phase)


def _leaves(outputs: Iterable[torch.Tensor]) -> list[Any]:
    """Return the nodes of the graph behind these tensors that accumulate gradients."""
    seen, leaves = set(), []
    nodes = [output.grad_fn for output in outputs]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):
                leaves.append(node)
            nodes.extend(following for following, _ in node.next_functions)
    return leaves
