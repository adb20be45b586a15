"""A Python file with torch.distributed, as torchrun would run it: its ranks are threads, an engine has their calls."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import torch
from greenlet import greenlet

from launchers.devices import as_before, use_share_of_cores
from records.errors import RunFailed, UsageError
from torch_scripts.process_group import Engine, Pending
from torch_scripts.process_state import Lines, ProcessState
from torch_scripts.threads import RankThread


class Rank(Protocol):
    """What an engine knows of a rank: its thread, and what it waits for."""

    coroutine: greenlet
    thread: RankThread
    waits_for: Pending | None
    is_over: bool


class Script:
    """A Python file and its arguments. Raises UsageError."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self.path, self.arguments = path, [path, *arguments]
        self.folder = f"{Path(path).resolve().parent}{os.sep}"
        self._loaded = set(sys.modules)
        try:
            self._code = compile(Path(path).read_text(), str(Path(path).resolve()), "exec")
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"--script {path}: cannot be run: {error}; give a Python file") from error

    def forget(self) -> None:
        """Let the modules beside the script be loaded once more."""
        for name, module in list(sys.modules.items()):
            if name not in self._loaded and str(getattr(module, "__file__", "")).startswith(self.folder):
                del sys.modules[name]

    def run(self, state: ProcessState) -> None:
        """Run it as `__main__`."""
        state.main.__dict__.update(__file__=self.path, __builtins__=__builtins__)
        exec(self._code, state.main.__dict__)


class Program:
    """A script on its ranks. `failure`: what ended it before its end."""

    def __init__(
        self,
        script: Script,
        ranks: Sequence[Any],
        engine: Engine,
        seed: int,
        output: Callable[[int, Any], Any] = Lines,
    ) -> None:
        self.ranks: Sequence[Rank] = ranks
        self._script, self._engine = script, engine
        self.failure: RunFailed | None = None
        self._outputs: list[Any] = []
        for i, rank in enumerate(ranks):
            state = ProcessState(i, len(ranks), script.arguments, seed, output)
            self._outputs += state.outputs
            rank.thread = RankThread(i, partial(script.run, state), state, script.folder)
            rank.thread.engine = engine

    def live(self, rank: Rank) -> None:
        """On the hub: let a rank run until it ends, and do what it asks for."""
        try:
            while (request := rank.thread.resume()) is not None:
                rank.thread.answer = request()
            if rank.thread.error is not None:
                raise self._failure_of(rank.thread, rank.thread.error)
            rank.is_over = True
        except RunFailed as error:
            self.failure = self.failure or error
            self._engine.stop()

    def end(self) -> None:
        """End the ranks that are left."""
        for rank in self.ranks:
            rank.thread.kill()
        for output in self._outputs:
            if isinstance(output, Lines):
                output.end()

    def deadlock(self, reason: Callable[[Pending], str]) -> str:
        """Return who waits for what, where, by the `reason` of each; "": nobody waits."""
        waits = [reason(rank.waits_for) for rank in self.ranks if rank.waits_for and not rank.is_over]
        ended = [str(rank.thread.rank) for rank in self.ranks if rank.is_over]
        return "; ".join([*waits, *([f"ended: rank {', '.join(ended)}"] if ended else [])]) if waits else ""

    def _failure_of(self, thread: RankThread, error: BaseException) -> RunFailed:
        if isinstance(error, RunFailed):
            return error
        folder = self._script.folder
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
        at = f"{frames[-1].filename[len(folder) :]}:{frames[-1].lineno}" if frames else thread.at
        what = f"raised {type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            what = f"exited with {error.code}"
        return RunFailed(f"rank {thread.rank} {what}, at {at}")


@contextmanager
def ranks_alone(script: Script) -> Iterator[None]:
    """In the block, this process may have ranks that are threads; afterwards it is as before."""
    before = ProcessState.of_this_process()
    path = [script.folder.rstrip(os.sep), *sys.path]
    alone = torch.autograd.set_multithreading_enabled(False)
    with as_before(), patch.object(sys, "path", path), alone, torch.no_grad():  # the hub's; each thread has its own
        use_share_of_cores(1, 1)
        try:
            yield
        finally:
            before.install()
