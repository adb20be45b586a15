"""Labs on torch.distributed: a student's functions run as scripts do, each rank a thread, in virtual time."""

import io
import math
import os
import re
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from typing_extensions import override

from gradwire.baselines.ring_all_reduce_builtin import join
from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts.collectives import plans
from gradwire.torch_scripts.process_state import ProcessState
from gradwire.torch_scripts.script import Program
from gradwire.torch_scripts.threads import Killed
from gradwire.torch_scripts.virtual import Cluster, run_in_virtual_time
from gradwire.torch_scripts.virtual_rank import ScriptRecorder, Speed
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.ranks import Deadlock
from lessons.judge import RANK, Game
from lessons.lab import BANDWIDTH, LATENCY, Case, Fault, Lab, Lane, Run, Sent, Vectors, first
from lessons.source import Source

_INSTANT = Speed(flops=math.inf)  # computing takes no time, sleeping does


class ScriptLab(Lab):
    """A lab whose functions call torch.distributed. `run_rank` finds the default group initialised."""

    @abstractmethod
    def run_rank(self, yours: SimpleNamespace, case: Case, inputs: Vectors) -> Vectors:
        """Run one rank, like `Lab.run`."""

    def lanes(self, run: Run) -> list[Lane]:
        """Return when the ranks computed what, for the picture: by default nothing is drawn but messages."""
        return []

    @override
    def run(self, yours: SimpleNamespace, transport: Any, case: Case, inputs: Vectors) -> Vectors:
        """Run one rank on real processes, with gloo."""
        join(transport, "gloo")
        return self.run_rank(yours, case, inputs)

    @override
    def play(self, yours: Sequence[Any], run: Run, source: Source) -> Run:
        """Play a case, each rank a thread. Raises Fault."""
        return ScriptGame(self, yours, run, source).play()

    @override
    def label(self, message: Sent, case: Case) -> str:
        """Return the call that a message belongs to: "all_reduce 2", "message 5"."""
        return message.tag.partition(":")[0]

    @override
    def comment(self, kind: str, run: Run) -> Iterator[str]:
        if kind == "hole":
            yield self.right_so_far(run.case.function or self.functions[-1])


def count_calls(run: Run, kind: str) -> int:
    """Return how many collectives of a kind, such as "all_reduce", have sent messages."""
    return len({message.tag.partition(":")[0] for message in run.sent if message.tag.startswith(f"{kind} ")})


class ScriptGame(Game):
    """One case of a lab on torch.distributed."""

    @override
    def play(self) -> Run:
        n, function = self.case.n, vars(self.yours[0])[self.lab.functions[-1]]
        path = function.__code__.co_filename if hasattr(function, "__code__") else ""
        self.folder = f"{os.path.dirname(path)}{os.sep}" if os.sep in path else "<"  # so begin the names of some cells
        self.streams = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()  # None: what is printed is not shown
        recorders = [_Recorder(rank, self) for rank in range(n)]
        network = OneSwitch(n, BANDWIDTH, LATENCY)
        try:
            with redirect_stdout(self.streams[0]), redirect_stderr(self.streams[1]):
                cluster = run_in_virtual_time(_Ranks(self), network, recorders, _INSTANT, plans("ring"))
        except Deadlock as deadlock:
            text = self.in_lines(str(deadlock).removeprefix("deadlock: "))
            raise Fault("deadlock", f"{self.case}: {text}{_explain_waiting(text)}") from None
        except RunFailed as error:
            text = self.in_lines(str(error).removeprefix("mismatch: "))
            raise self.fault or Fault("mismatch", f"{self.case}: {text}") from None
        self.finish(cluster)
        return self.run

    def finish(self, cluster: Cluster) -> None:
        """Note what has come of the run. Raises Fault."""
        run, ranks = self.run, range(self.case.n)
        run.results = [rank.result for rank in cluster.ranks]
        run.messages = [len(run.of_rank(rank)) for rank in ranks]
        run.nbytes = [sum(message.nbytes for message in run.of_rank(rank)) for rank in ranks]
        run.seconds = max(rank.clock for rank in cluster.ranks)
        assert isinstance(self.lab, ScriptLab)
        run.lanes = self.lab.lanes(run)
        if unread := first(self.in_lines(text) for text in cluster.unread()):
            raise Fault("unread", f"{self.case}: {unread}, which no rank has met with its counterpart")

    def in_lines(self, text: str) -> str:
        """Return a text in which the places of the student's code are told with their lines."""

        def place(found: re.Match[str]) -> str:
            file = f"{self.folder}{found[1]}"
            return f"at {self.source.place(file, found[2])}" if file in self.source.texts else "in the lab's own code"

        return re.sub(r"at ([^\s;,]+):(\d+)", place, text)


def _explain_waiting(deadlock: str) -> str:
    """Return why ranks wait that only send and receive."""
    if " waits in send " in deadlock:
        return "; dist.send returns when its message is received, so two ranks that send to each other wait: isend"
    if deadlock.count(" waits in ") == deadlock.count(" waits in recv "):
        return "; is each message sent before, to the rank and with the tag that it is received with?"
    return ""


class _Ranks(Program):
    """What each rank runs: its part of the case."""

    name, arguments = "lesson", ["lesson"]

    def __init__(self, game: ScriptGame) -> None:
        self._game, self.folder = game, game.folder

    @override
    def run(self, state: ProcessState) -> Vectors:
        game = self._game
        sys.stdout, sys.stderr = game.streams
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        RANK.set(rank)
        try:
            return game.lab.run_rank(game.yours[rank], game.case, game.run.inputs[rank])  # type: ignore[attr-defined]
        except (Killed, RunFailed):
            raise
        except BaseException as error:
            game.fault = game.fault or game.source.explain(error, f"{game.case}: rank {rank}")
            raise RunFailed(str(game.fault)) from error


class _Recorder(ScriptRecorder):
    """Notes the messages of one rank in the run."""

    def __init__(self, rank: int, game: ScriptGame) -> None:
        super().__init__(rank, game.folder)
        self._game = game

    @override
    def add(
        self, phase: str, t0: float, t1: float, op: str = "", peer: int = -1, tag: str = "", nbytes: int = 0, *_: Any
    ) -> None:
        game = self._game
        if op == "send":
            step, round_ = len(game.run.of_rank(self.rank)) + 1, game.rounds[self.rank] + 1
            game.run.sent.append(Sent(self.rank, step, peer, tag, None, None, nbytes, round_, t0))
        elif op == "recv":
            sent = next(message for message in game.run.of_rank(peer)
                        if (message.dst, message.tag, message.arrived) == (self.rank, tag, None))  # fmt: skip
            sent.arrived = t1
            game.rounds[self.rank] = max(game.rounds[self.rank], sent.round)
