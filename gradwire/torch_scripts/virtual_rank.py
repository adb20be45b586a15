"""A rank of a script in virtual time: its clock, its records, and what its passes take."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from tqdm import tqdm
from typing_extensions import override

from gradwire.core.records.machine import name_of
from gradwire.core.records.recorder import Recorder
from gradwire.diagnosis.step_hashes import StepHashes
from gradwire.torch_scripts.bill import Bill, ByPass, ByRate, Graph, Operations
from gradwire.torch_scripts.script import Program
from gradwire.torch_scripts.starter import Process
from gradwire.torch_scripts.threads import BackwardCall, RankThread

if TYPE_CHECKING:
    from gradwire.torch_scripts.virtual import Cluster


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


@dataclass(frozen=True)
class Speed:
    """How fast ranks compute: the seconds of a forward and backward pass, or operations a second; or as here."""

    compute: float | None = None
    flops: float | None = None

    def bill(self, spend: Callable[[float], None]) -> Bill | None:
        """Return what passes the time of a rank to `spend`; None: the seconds of its thread pass."""
        if self.flops is not None:
            return ByRate(spend, self.flops)
        return None if self.compute is None else ByPass(spend, self.compute)


class VirtualRank(RankThread):
    """A rank of the script, with a clock and its records. `passes`: when each whole backward pass ended.

    `steps`: when each step of its first optimizer ended. Its records count these, and without an optimizer the passes.
    `bill`: what its passes take. Without, the seconds of its thread pass. `hashes`: those of its steps, if they are
    wanted.
    """

    engine: "Cluster"
    progress: "tqdm[Any] | None" = None
    hashes: StepHashes | None = None

    def __init__(
        self, script: Program, recorder: ScriptRecorder, n: int, seed: int, speed: Speed, outputs: Sequence[Any] = ()
    ) -> None:
        super().__init__(script, recorder.rank, n, seed, outputs)
        self.recorder = self._first_recorder = recorder
        self._given = n, seed, speed
        self.clock = self._shown = 0.0  # its time, and until when its records show it
        self.phase = "forward"
        self.passes: list[float] = []
        self.steps: list[float] = []
        self.bill = speed.bill(self._spend)
        self._optimizer: torch.optim.Optimizer | None = None  # whose steps count
        self._depth = 0  # modules that are being called
        recorder.clock = lambda: self.clock

    @override
    def start_process(self, run: Callable[[], object], number: int) -> None:
        self._end_phase(self.phase)
        rank = VirtualRank(Process(self._script, run), self._first_recorder, *self._given, self._outputs)
        rank.state.main = self.state.main
        rank.clock, rank._shown, rank.progress = self.clock, self._shown, self.progress
        rank.passes, rank.steps, rank.hashes = self.passes, self.steps, self.hashes
        rank.watcher = self.watcher
        self.recorder = ScriptRecorder(self.rank, self._script.folder)  # nobody's: the other is the rank now
        self.ask(partial(self.engine.start_process, self, rank, number))

    def pass_time(self) -> None:
        """Let the time pass that its thread has computed, if none is given."""
        if self.bill is None:
            self.clock += self.spent
        self.spent = 0.0

    @override
    def seconds(self) -> float:
        self.note()
        return self.clock + (self.spent if self.bill is None else 0.0)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """In the block, this rank computes something that takes it no time."""
        self.note()
        spent = self.spent
        with _disable_current_modes(), torch.no_grad():
            yield
        self.note()
        self.spent = spent

    def show(self, phase: str, tag: str = "") -> None:
        """Record what the rank has done since this was called last."""
        if self.clock > self._shown:
            self.recorder.at = self.at
            self.recorder.add(phase, self._shown, self.clock, tag=tag)
        self._shown = self.clock

    @override
    def run_script(self) -> Any:
        with nullcontext() if self.bill is None else Operations(self.bill):
            return super().run_script()

    @override
    def begin(self, module: nn.Module, inputs: Sequence[Any]) -> None:
        self._depth += 1
        if self._depth == 1 and self.hashes is not None:
            with self.apart():
                self.hashes.call(module, inputs)
        if self._depth == 1 and self.bill is not None and torch.is_grad_enabled():
            self.bill.begin(module, all(getattr(value, "grad_fn", None) is None for value in inputs))

    @override
    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self.bill is not None:
            self.bill.end()

    @override
    def backward(self, run: Callable[[], Any], call: BackwardCall) -> Any:
        self._end_phase("forward")
        graph = Graph(call.outputs) if self.bill is not None or call.inputs else None
        is_whole = not call.inputs or (graph is not None and graph.ends_at(call.inputs))
        self.phase = "backward"
        try:
            if self.bill is None or graph is None:
                return run()
            with self.bill.backward(graph, is_whole, call.has_graph):
                return run()
        finally:
            self._end_phase("backward")
            self.phase = "forward"
            if is_whole:
                self._end_pass()

    @override
    def steps_now(self, optimizer: torch.optim.Optimizer) -> None:
        if self.hashes is not None and self._optimizer in (None, optimizer):
            with self.apart():
                self.hashes.step(optimizer)

    @override
    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = self._optimizer or optimizer
        if self._optimizer is optimizer:
            self._end_phase(self.phase)
            self.recorder.step += 1
            self.steps.append(self.clock)

    def _spend(self, seconds: float) -> None:
        self.clock += seconds

    def _end_phase(self, phase: str) -> None:
        self.note()
        self.pass_time()
        self.show(phase)

    def _end_pass(self) -> None:
        self.recorder.step += not self.has_optimizer
        self.passes.append(self.clock)
        if self.progress is not None:
            self.progress.set_postfix_str(f"{self.clock:.3g} virtual s", refresh=False)
            self.progress.update()
