"""A Python file with torch.distributed, as torchrun would run it: its ranks are threads, an engine has their calls."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch

from gradwire.command import path_from
from gradwire.core.launchers.devices import as_before, use_share_of_cores
from gradwire.core.records.errors import UsageError
from gradwire.torch_scripts.process_state import ProcessState

_KEPT = ("gradwire", "__main__")  # of the modules of this process, whatever a script has beside it


class Script:
    """A Python file and its arguments. Raises UsageError."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self.path, self.arguments = path, [path, *arguments]
        self.folder = f"{Path(path).resolve().parent}{os.sep}"
        self._loaded = dict(sys.modules)
        try:
            self._code = compile(Path(path).read_text(), str(Path(path).resolve()), "exec")
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"--script {path}: cannot be run: {error}; give a Python file") from error

    def forget(self) -> None:
        """Let the modules beside the script be loaded once more."""
        for name, module in list(sys.modules.items()):
            is_beside = str(getattr(module, "__file__", "")).startswith(self.folder)
            if is_beside and module is not self._loaded.get(name) and name.partition(".")[0] not in _KEPT:
                del sys.modules[name]

    def run(self, state: ProcessState) -> None:
        """Run it as `__main__`."""
        state.main.__dict__.update(__file__=self.path, __builtins__=__builtins__)
        exec(self._code, state.main.__dict__)


@contextmanager
def modules_as_under_torchrun(script: Script) -> Iterator[None]:
    """In the block, imports find what a process of the script's own would: what is beside it first, the clone last.

    What this process has loaded by a name that is another module there is put aside, but for the standard library.
    """
    path = path_from(script.folder.rstrip(os.sep))
    kept = {*_KEPT, *sys.stdlib_module_names}
    loaded = {name: module for name, module in sys.modules.items() if "." not in name and name not in kept}
    others = {name for name, module in loaded.items() if _is_another(PathFinder.find_spec(name, path), module)}
    aside = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in others}
    for name in aside:
        del sys.modules[name]
    try:
        with patch.object(sys, "path", path):
            yield
    finally:
        script.forget()
        for name in [name for name in sys.modules if name.partition(".")[0] in others]:
            del sys.modules[name]
        sys.modules.update(aside)


def _is_another(found: ModuleSpec | None, loaded: ModuleType) -> bool:
    return (
        found is not None
        and found.has_location
        and found.origin != getattr(getattr(loaded, "__spec__", None), "origin", None)
    )


@contextmanager
def ranks_alone(script: Script) -> Iterator[None]:
    """In the block, this process may have ranks that are threads; afterwards it is as before."""
    before = ProcessState.of_this_process()
    alone = torch.autograd.set_multithreading_enabled(False)
    with as_before(), modules_as_under_torchrun(script), alone, torch.no_grad():  # the hub's; each thread has its own
        use_share_of_cores(1, 1)
        try:
            yield
        finally:
            before.install()
