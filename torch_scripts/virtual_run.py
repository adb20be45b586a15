"""A script of the user's with torch.distributed, run in virtual time."""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import torch
from tqdm import tqdm

from launchers.devices import as_before, use_share_of_cores
from records.errors import RunFailed, UsageError
from torch_scripts.collectives import AllReduce
from torch_scripts.passes import Passes
from torch_scripts.process_group import Here, be
from torch_scripts.process_state import Lines, ProcessState
from torch_scripts.replaced import replaced
from torch_scripts.threads import RankThread
from torch_scripts.virtual import Cluster, ScriptRecorder, VirtualRank
from virtual_time.network import Network
from virtual_time.ranks import Deadlock
from virtual_time.world import World


class Script:
    """A Python file and its arguments, to be run as `__main__`. Raises UsageError."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self.path, self.arguments = path, [path, *arguments]
        self.folder = f"{Path(path).resolve().parent}{os.sep}"
        try:
            self.code: CodeType = compile(Path(path).read_text(), str(Path(path).resolve()), "exec")
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"--script {path}: cannot be run: {error}; give a Python file") from error

    def run(self, state: ProcessState) -> None:
        """Run it as `__main__`."""
        state.main.__dict__.update(__file__=self.path, __builtins__=__builtins__)
        exec(self.code, state.main.__dict__)


@contextmanager
def ranks_alone(script: Script) -> Iterator[None]:
    """In the block, let threads be ranks; give the process back as it was."""
    before = ProcessState.of_this_process()
    path = [script.folder.rstrip(os.sep), *sys.path]
    with as_before(), patch.object(sys, "path", path), torch.autograd.set_multithreading_enabled(False):
        use_share_of_cores(1, 1)
        try:
            yield
        finally:
            before.install()


def failure_of(thread: RankThread, folder: str) -> RunFailed:
    """Return the error for the user when a rank has raised one: what it is, and where in the script."""
    error = thread.error
    assert error is not None
    if isinstance(error, RunFailed):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f"{os.path.relpath(f.filename, folder)}:{f.lineno}" for f in frames if f.filename.startswith(folder)]
    text = f"exited with {error.code}" if isinstance(error, SystemExit) else f"raised {type(error).__name__}: {error}"
    return RunFailed(f"rank {thread.rank} {text}, at {inside[-1] if inside else thread.at}")


def run_in_virtual_time(
    script: Script,
    network: Network,
    recorders: Sequence[ScriptRecorder],
    compute: float | None,
    add: AllReduce,
    seed: int = 0,
    progress: "tqdm[Any] | None" = None,
) -> Cluster:
    """Run the script on every rank of the network; return what has happened. Raises RunFailed, Deadlock.

    `compute`: the seconds of a forward and backward pass; None: those of each rank's thread on this machine. `add`: the
    all-reduce. `progress` counts the passes of rank 0.
    """
    n = network.world_size
    world = World(network, compute=False)  # what ranks have of their own is changed by ProcessState
    cluster = Cluster(world, [VirtualRank(i, recorders[i], compute) for i in range(n)])
    failures: list[RunFailed] = []
    passes = {rank.number: Passes(rank, compute) for rank in cluster.ranks}

    def live(rank: VirtualRank) -> None:
        """Let a rank run until it ends; what it asks for is done here."""
        while (request := rank.thread.resume()) is not None:
            try:
                rank.thread.answer = request()
                if progress is not None and rank.number == 0:
                    progress.set_postfix_str(f"{rank.clock:.3g} virtual s", refresh=False)
                    progress.update(rank.recorder.step - progress.n)
            except RunFailed as error:
                failures.append(error)
                world.stop()
                return
        if rank.thread.error is not None:
            failures.append(failure_of(rank.thread, script.folder))
            world.stop()
        rank.show(rank.phase)
        rank.is_over = True

    with ExitStack() as stack:
        stack.enter_context(ranks_alone(script))
        stack.enter_context(replaced(n, passes))
        try:
            for rank in cluster.ranks:
                state = ProcessState(rank.number, n, script.arguments, seed, Lines)
                rank.thread = RankThread(rank.number, partial(_work, script, state, rank, cluster, add), state, script.folder)
                rank.coroutine = world.start(partial(live, rank))
            world.run()
        finally:
            for rank in cluster.ranks:
                rank.thread.kill()
                rank.coroutine.throw()
    if failures:
        raise failures[0]
    if waiting := [rank for rank in cluster.ranks if not rank.is_over]:
        raise Deadlock("deadlock: " + "; ".join(cluster.calls.reason(rank.waits_for) for rank in waiting if rank.waits_for))
    return cluster


def _work(script: Script, state: ProcessState, rank: VirtualRank, cluster: Cluster, add: AllReduce) -> None:
    be(Here(rank.number, rank.thread, cluster, add))
    try:
        script.run(state)
    finally:
        rank.pass_time()
