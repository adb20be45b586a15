"""What the file of an entry may hold: the rules that are checked before it is imported.

They find mistakes and plain tricks. They are no sandbox: whoever adds a record to the table reads its file too.
"""

import ast
import importlib
import inspect
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from records.errors import RunFailed, UsageError, one_line

MOST_LINES = 150
MODULES = (
    "__future__",
    "collections",
    "collections.abc",
    "dataclasses",
    "math",
    "torch",
    "torch.nn.functional",
    "typing",
)
OF_PROJECT = ("strategies", "compression", "transports.inbox", "transports.messages", "records.errors")
CONTRACT = """
    allocate b barrier blocks collect decode descent device done encode free g is_watched isend layout messages meters n
    n_ranks names object on_gradient parts peers rank rate recorder recv release replica samples sizes slices src step
    steps_per_epoch tag tensor transport until version wait workers world_size x
""".split()
"""The names that CONTRIBUTING.md has for a strategy, beside those of tensors and of Python's containers."""
_CALLS = {"eval", "exec", "compile", "open", "input", "globals", "locals", "vars", "getattr", "setattr", "delattr",
          "breakpoint", "memoryview", "id", "dir", "help", "__import__", "__builtins__"}  # fmt: skip
_GLOBAL = ("set_", "register_", "save", "load", "from_file", "share_memory", "storage", "untyped_storage", "data_ptr",
           "manual_seed", "seed", "initial_seed", "numpy", "from_numpy", "compile", "module_load")  # fmt: skip
_INSIDE = {
    "ranks",
    "world",
    "network",
    "coroutine",
    "clock",
    "inbox",
    "module",
    "transports",
    "time_passes",
    "defaults",
}


def _names_of(*things: object) -> set[str]:
    found = set()
    for thing in things:
        for name in dir(thing):
            if not name.startswith(("_", *_GLOBAL)) and not inspect.ismodule(inspect.getattr_static(thing, name)):
                found.add(name)
    return found


KNOWN = _names_of(
    torch, Tensor, F, torch.nn, math, dict, list, tuple, set, str, deque, Counter, defaultdict, OrderedDict
)
KNOWN |= {*CONTRACT, "nn", "functional"}


def check_file(path: Path) -> None:
    """Check the rules. Raises RunFailed with the line that breaks one, UsageError if it cannot be read."""
    tree, n_lines = _parsed(path)
    if n_lines > MOST_LINES:
        raise RunFailed(f"{path.name}: has {n_lines} lines, and {MOST_LINES} are the most")
    own = _own_names(tree) - _INSIDE
    for node in ast.walk(tree):
        for what in _wrong(node, own):
            raise RunFailed(f"{path.name}, line {getattr(node, 'lineno', 1)}: {what}")


def options_in(path: Path) -> dict[str, str]:
    """Return the OPTIONS of a file: of each cluster the options as on a command line. Raises UsageError."""
    for node in _parsed(path)[0].body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["OPTIONS"]:
            try:
                found = ast.literal_eval(node.value)
            except ValueError:
                found = None
            if not isinstance(found, dict) or not all(isinstance(part, str) for pair in found.items() for part in pair):
                raise UsageError(f"{path.name}: OPTIONS must be texts by cluster, such as {{'slow': '--lr 0.01'}}")
            return found
    return {}


def _parsed(path: Path) -> tuple[ast.Module, int]:
    try:
        text = path.read_text(encoding="utf-8")
        return ast.parse(text), len(text.splitlines())
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {one_line(error)}; correct it") from error


def _own_names(tree: ast.Module) -> set[str]:
    """Return the names that the file defines: functions, and what it assigns to self, or declares in a class."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def _wrong(node: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield what is wrong with a node."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in MODULES:
                yield f"imports {alias.name}; of this project it may import names: from strategies import ..."
    elif isinstance(node, ast.ImportFrom):
        yield from _wrong_import(node)
    elif isinstance(node, ast.Global):
        yield "has a global statement; ranks share nothing but messages"
    elif isinstance(node, ast.Name) and node.id in _CALLS:
        yield f"uses {node.id}, which no strategy needs"
    elif isinstance(node, ast.Attribute):
        of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
        of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        if isinstance(node.ctx, ast.Store | ast.Del) and not of_self:
            yield f"assigns to {ast.unparse(node)}; assign to attributes of self only"
        elif node.attr.startswith("__" if of_self else "_") and not of_super:
            yield f"uses {ast.unparse(node)}, which no strategy needs"
        elif not (of_self or of_super) and node.attr not in KNOWN | own:
            yield f"uses {ast.unparse(node)}, which is no part of the contract in CONTRIBUTING.md"


def _wrong_import(node: ast.ImportFrom) -> Iterator[str]:
    module = node.module or ""
    project = node.level == 0 and any(module == one or module.startswith(f"{one}.") for one in OF_PROJECT)
    if not project and (node.level or module not in (*MODULES, "torch.nn")):
        yield f"imports {'.' * node.level}{module}; it may import {', '.join((*MODULES, *OF_PROJECT))}"
        return
    for alias in node.names:
        try:
            value = getattr(importlib.import_module(module), alias.name)
        except (ImportError, AttributeError):
            yield f"imports {alias.name}, which {module} has not"
            continue
        nn = module.startswith("torch") and alias.name in ("nn", "functional")
        if not nn and (inspect.ismodule(value) or isinstance(value, dict | list | set | Tensor)):
            yield f"imports {alias.name} of {module}; it may import classes and functions"
        if module == "torch" and not nn and alias.name not in KNOWN:
            yield f"imports {alias.name} of torch, which no strategy needs"
