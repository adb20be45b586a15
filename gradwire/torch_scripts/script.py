"""A file or function with torch.distributed, as torchrun would run it, its ranks being threads of this process."""

import inspect
import os
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from gradwire.command import path_from
from gradwire.core.launchers.by_value import dumps
from gradwire.core.launchers.devices import as_before, use_share_of_cores
from gradwire.core.records.errors import UsageError
from gradwire.torch_scripts.on_cpu import cuda_is_cpu
from gradwire.torch_scripts.process_state import ProcessState

_KEPT = ("gradwire", "__main__")  # of the modules of this process, whatever a script has beside it


class Program(ABC):
    """What every rank runs."""

    name: str
    arguments: list[str]  # its sys.argv
    on_cpu: bool = False  # what it gives to a GPU
    folder: str  # its sources' names begin with this; errors and records name their lines

    @abstractmethod
    def run(self, state: ProcessState) -> Any:
        """Run it in the process of a rank; return its result."""


class Script(Program):
    """A Python file, or a module as "-m NAME", and its arguments. Raises UsageError."""

    def __init__(self, path: str, arguments: Sequence[str] = (), on_cpu: bool = False) -> None:
        self.on_cpu = on_cpu
        self._loaded, self._spec = dict(sys.modules), None
        self.first = str(Path(path).resolve().parent)  # where it imports from first
        self.folder = f"{self.first}{os.sep}"
        self.name = Path(path).name
        if path.startswith("-m "):
            self._spec, self.first = _find_module(path[3:].strip()), os.getcwd()
            path, self.name = str(self._spec.origin), f"{self._spec.name.removesuffix('.__main__')}.py"
            is_here = path.startswith(f"{self.first}{os.sep}")
            self.folder = f"{self.first if is_here else os.path.dirname(path)}{os.sep}"
            self.forget()
        self.path, self.arguments = path, [path, *arguments]
        if Path(path).exists() and not Path(path).is_file():  # such as /dev/full, which has no end
            raise UsageError(f"--script {path}: is no file; give a Python file")
        try:
            self._code = compile(Path(path).read_bytes(), str(Path(path).resolve()), "exec")
        except (OSError, ValueError, SyntaxError) as error:
            raise UsageError(f"--script {path}: cannot be run: {error}; give a Python file") from error

    def forget(self) -> None:
        """Let the modules beside the script be loaded once more."""
        for name, module in sys.modules.copy().items():
            is_beside = str(getattr(module, "__file__", "")).startswith(self.folder)
            if is_beside and module is not self._loaded.get(name) and name.partition(".")[0] not in _KEPT:
                del sys.modules[name]

    def run(self, state: ProcessState) -> None:
        """Run it as `__main__`."""
        state.main.__dict__.update(__file__=self.path, __builtins__=__builtins__)
        if self._spec is not None:
            state.main.__dict__.update(__spec__=self._spec, __package__=self._spec.parent)
        exec(self._code, state.main.__dict__)


class Function(Program):
    """A function and its arguments; each rank has copies, with the globals that it uses. Raises UsageError."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any] = ()) -> None:
        inner: Any = inspect.unwrap(function)
        while isinstance(inner, partial):
            inner = inspect.unwrap(inner.func)
        try:
            file = inspect.getfile(inner if hasattr(inner, "__code__") else type(inner).__call__)
        except (TypeError, AttributeError):
            raise UsageError(f"function={function!r}: is no function written in Python; give one") from None
        self.name = getattr(inner, "__name__", type(inner).__name__)
        self.arguments = [self.name]
        self.folder = f"{os.path.dirname(file)}{os.sep}" if os.sep in file else "<"  # so begin the names of some cells
        self._copied = dumps((function, tuple(arguments)), "the ranks")
        self._main = vars(sys.modules["__main__"])

    def run(self, state: ProcessState) -> Any:
        """Call a copy of it; what it defines in `__main__` is found there."""
        state.main.__dict__.update(self._main)
        function, arguments = pickle.loads(self._copied)
        return function(*arguments)


@contextmanager
def modules_as_under_torchrun(script: Script) -> Iterator[None]:
    """In the block, imports search as in a process of the script's own: the script's folder first, the clone last.

    Modules of this process whose names mean other modules there are put aside, except the standard library.
    """
    path = path_from(script.first)
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


def _find_module(name: str) -> ModuleSpec:
    """Return the module that `python -m NAME` would run here. Raises UsageError."""
    cure = "give a module that `python -m` finds from this folder"
    try:
        with patch.object(sys, "path", path_from(os.getcwd())):
            found = find_spec(name)
            if found is not None and found.submodule_search_locations is not None:
                found = find_spec(f"{name}.__main__")
    except (ImportError, ValueError) as error:
        raise UsageError(f"--script -m {name}: {error}; {cure}") from error
    if found is None or found.origin is None:
        raise UsageError(f"--script -m {name}: there is no such module; {cure}")
    return found


def _is_another(found: ModuleSpec | None, loaded: ModuleType) -> bool:
    return (
        found is not None
        and found.has_location
        and found.origin != getattr(getattr(loaded, "__spec__", None), "origin", None)
    )


@contextmanager
def ranks_alone(program: Program) -> Iterator[None]:
    """In the block, this process may have ranks that are threads; afterwards it is as before."""
    before = ProcessState.of_this_process()
    alone = torch.autograd.set_multithreading_enabled(False)
    modules = modules_as_under_torchrun(program) if isinstance(program, Script) else nullcontext()
    devices = cuda_is_cpu() if program.on_cpu else nullcontext()
    with as_before(), modules, devices, alone, torch.no_grad():  # the hub's; each thread has its own
        use_share_of_cores(1, 1)
        try:
            yield
        finally:
            before.install()
