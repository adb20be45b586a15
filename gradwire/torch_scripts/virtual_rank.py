"""A rank of a script in virtual time: its clock, its records, and what its passes take."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm import tqdm
from typing_extensions import override

from gradwire.core.records.machine import name_of
from gradwire.core.records.recorder import Recorder
from gradwire.torch_scripts.script import Program
from gradwire.torch_scripts.threads import RankThread


class ScriptRecorder(Recorder):
    """The records of a rank; `at` is the line of the script, in `folder`, that what is recorded now is due to."""

    def __init__(self, rank: int, folder: str) -> None:
        super().__init__(rank)
        self.epoch, self.at = 1, ""
        self._folder, self._places = folder, {"": 0}
        self._followed = {folder: {}}  # the frames at work are the hub's

    def _line_at_work(self) -> int:
        if self.at not in self._places:
            file, _, line = self.at.rpartition(":")
            self._places[self.at] = len(self._lines)
            self._lines.append(f"{name_of(self._folder + file)}:{line}" if line.isdigit() else "")
        return self._places[self.at]

    @property
    def files(self) -> set[str]:
        """The sources whose lines were recorded."""
        return {line.rpartition(":")[0] for line in self._lines if line}


class VirtualRank(RankThread):
    """A rank of the script, with a clock and its records. `passes`: when each backward pass ended.

    `steps`: when each step of its first optimizer ended. Its records count these, and without an optimizer the passes.

    With `compute`, the seconds of both passes, a third passes in the forward pass, two thirds in the backward pass: at
    each module, or gradient, the part that it has of all elements whose gradients are computed. Otherwise the seconds
    of its thread pass.
    """

    progress: "tqdm[Any] | None" = None

    def __init__(self, script: Program, recorder: ScriptRecorder, n: int, seed: int, compute: float | None) -> None:
        super().__init__(script, recorder.rank, n, seed)
        self.recorder, self._compute = recorder, compute
        self.clock = self._shown = 0.0  # its time, and until when its records show it
        self.phase = "forward"
        self.passes: list[float] = []
        self.steps: list[float] = []
        self._optimizer: torch.optim.Optimizer | None = None  # whose steps count
        self._elements = 0  # whose gradients the last backward pass has computed
        self._done = 0.0  # seconds of the pass that goes on
        recorder.clock = lambda: self.clock

    def pass_time(self) -> None:
        """Let the time pass that its thread has computed, if none is given."""
        if self._compute is None:
            self.clock += self.spent
        self.spent = 0.0

    @override
    def seconds(self) -> float:
        self.note()
        return self.clock + (self.spent if self._compute is None else 0.0)

    def show(self, phase: str, tag: str = "") -> None:
        """Record what the rank has done since this was called last."""
        if self.clock > self._shown:
            self.recorder.at = self.at
            self.recorder.add(phase, self._shown, self.clock, tag=tag)
        self._shown = self.clock

    def forward(self, module: nn.Module) -> None:
        """Let the time pass in which a module computes, if it is known which have gradients."""
        if self._elements and torch.is_grad_enabled():
            self._spend(1 / 3, sum(p.numel() for p in module.parameters(recurse=False) if p.requires_grad))

    def backward(self, run: Callable[[], Any], outputs: Iterable[torch.Tensor]) -> Any:
        """Run a backward pass from these tensors on, and let its time pass."""
        leaves = _leaves(outputs) if self._compute else []
        self._end_pass("forward", 1 / 3)
        self._elements = sum(leaf.variable.numel() for leaf in leaves)
        handles = [leaf.register_prehook(partial(self._spend, 2 / 3, leaf.variable.numel())) for leaf in leaves]
        self.phase = "backward"
        try:
            return run()
        finally:
            for handle in handles:
                handle.remove()
            self._end_pass("backward", 2 / 3)
            self.phase = "forward"
            self.recorder.step += not self.has_optimizer
            self.passes.append(self.clock)
            if self.progress is not None:
                self.progress.set_postfix_str(f"{self.clock:.3g} virtual s", refresh=False)
                self.progress.update()

    @override
    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = self._optimizer or optimizer
        if self._optimizer is optimizer:
            self.note()
            self.pass_time()
            self.show(self.phase)
            self.recorder.step += 1
            self.steps.append(self.clock)

    def _spend(self, part: float, own: int, _: Any = None) -> None:
        whole = (self._compute or 0.0) * part
        seconds = min(whole * own / max(self._elements, 1), whole - self._done)
        self._done += seconds
        self.clock += seconds

    def _end_pass(self, phase: str, part: float) -> None:
        self.note()
        self.pass_time()
        self.clock += (self._compute or 0.0) * part - self._done
        self._done = 0.0
        self.show(phase)


def _leaves(outputs: Iterable[torch.Tensor]) -> list[Any]:
    """Return the nodes of the graph behind these tensors that accumulate gradients."""
    seen, nodes = set[Any](), {output.grad_fn for output in outputs}
    while nodes := nodes - seen - {None}:
        seen |= nodes
        nodes = {following for node in nodes if node for following, _ in node.next_functions}
    return [node for node in seen if hasattr(node, "variable")]
