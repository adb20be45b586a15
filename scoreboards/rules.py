"""What the file of an entry may hold: the rules that are checked before it is imported.

They find mistakes and plain tricks, and are no sandbox: who adds a record to the table reads its file too.
"""

import ast
import importlib
import inspect
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from records.errors import RunFailed, UsageError, one_line
from scoreboards.clusters import CLUSTERS

MOST_LINES, MOST_CHARACTERS = 150, 120
MODULES = ("collections", "collections.abc", "dataclasses", "math", "torch", "torch.nn.functional", "typing")
OF_PROJECT = ("strategies", "compression", "transports.inbox", "transports.messages", "records.errors")
CONTRACT = """
    allocate b barrier blocks collect decode descent device done encode free g is_watched isend layout messages meters n
    n_ranks names nn object on_gradient optim param_groups parts peers rank rate recorder recv release replica samples
    sizes slices src state step steps_per_epoch tag tensor transport until version wait workers world_size x zero_grad
""".split()
"""The names that CONTRIBUTING.md has for a strategy, beside those of tensors and of Python's containers."""
_NO_CALLS = "eval exec compile open input globals locals vars getattr setattr delattr breakpoint memoryview".split()
_NO_NAMES = ("_", "set_", "register_", "save", "load", "from_file", "share_memory", "data_ptr", "manual_seed", "numpy")
_INSIDE = {"model", "ranks", "world", "network", "coroutine", "clock", "inbox", "module", "transports", "time_passes"}
KNOWN = {
    name
    for thing in (torch, torch.nn, torch.optim, Tensor, F, math, dict, list, set, str, deque, Counter, defaultdict)
    for name in dir(thing)
    if not (name.startswith(_NO_NAMES) or inspect.ismodule(inspect.getattr_static(thing, name)))
} | {*CONTRACT}


def check_file(path: Path) -> None:
    """Check the rules. Raises RunFailed with the line that breaks one, UsageError if it cannot be read."""
    tree, lines = _parsed(path)
    if len(lines) > MOST_LINES or max(map(len, lines), default=0) > MOST_CHARACTERS:
        raise RunFailed(f"{path.name}: must have at most {MOST_LINES} lines of {MOST_CHARACTERS} characters")
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
    for node in ast.walk(tree):
        for what in _wrong(node, KNOWN | own - _INSIDE):
            raise RunFailed(f"{path.name}, line {getattr(node, 'lineno', 1)}: {what}")


def options_in(path: Path) -> dict[str, str]:
    """Return the OPTIONS of a file: those of the command line, on each cluster. Raises UsageError."""
    for node in _parsed(path)[0].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS":
            found = ast.literal_eval(node.value) if isinstance(node.value, ast.Constant | ast.Dict) else None
            found = dict.fromkeys(CLUSTERS, found) if isinstance(found, str) else found
            if isinstance(found, dict) and found.keys() <= CLUSTERS.keys() and {*map(type, found.values())} <= {str}:
                return found
            places = ", ".join(CLUSTERS)
            raise UsageError(f"{path.name}: OPTIONS must be a text, such as '--lr 0.01', or a dict of one for {places}")
    return {}


def _parsed(path: Path) -> tuple[ast.Module, list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
        return ast.parse(text), text.splitlines()
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{path}: {one_line(error)}; correct it") from error


def _wrong(node: ast.AST, known: set[str]) -> Iterator[str]:
    """Yield what is wrong with a node."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in MODULES:
                yield f"imports {alias.name}; it may import {', '.join(MODULES)}; from others, names only"
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        if module not in MODULES and not f"{module}.".startswith(tuple(f"{one}." for one in OF_PROJECT)):
            yield f"imports {module}; it may import {', '.join((*MODULES, *OF_PROJECT))}"
            return
        for alias in node.names:
            value = getattr(importlib.import_module(module), alias.name, None)
            if alias.name.startswith(_NO_NAMES) or not (
                inspect.isclass(value) or callable(value) or is_constant(value)
            ):
                yield f"imports {alias.name} from {module}; it may import classes, functions and constants"
    elif isinstance(node, ast.Global):
        yield "has a global statement; ranks share nothing but messages"
    elif isinstance(node, ast.Name) and (node.id in _NO_CALLS or node.id.startswith("__")):
        yield f"uses {node.id}, which no strategy needs"
    elif isinstance(node, ast.Attribute):
        of_self = isinstance(node.value, ast.Name) and node.value.id == "self" and not node.attr.startswith("__")
        of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
        if not isinstance(node.ctx, ast.Load) and not of_self and node.attr != "grad":
            yield f"assigns to {ast.unparse(node)}; assign to attributes of self only"
        elif not (of_self or of_super) and (node.attr not in known or node.attr.startswith("_")):
            yield f"uses {ast.unparse(node)}, which is no part of the contract in CONTRIBUTING.md"


def is_constant(value: object) -> bool:
    """Return whether nothing can be written into it, or it is the module torch.nn or its functions."""
    return isinstance(value, str | int | float | tuple | frozenset | torch.dtype) or value in (torch.nn, F)
