"""A Python file with torch.distributed, as torchrun would run it: its ranks are threads, an engine has their calls."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from gradwire.core.launchers.devices import as_before, use_share_of_cores
from gradwire.core.records.errors import UsageError
from gradwire.torch_scripts.process_state import ProcessState


class Script:
    """A Python file and its arguments. Raises UsageError."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self.path, self.arguments = path, [path, *arguments]
        self.folder = f"{Path(path).resolve().parent}{os.sep}"
        self._loaded = set(sys.modules)
        if Path(path).exists() and not Path(path).is_file():  # such as /dev/full, which has no end
            raise UsageError(f"--script {path}: is no file; give a Python file")
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
