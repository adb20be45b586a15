"""The rules for the file of an entry, which are checked before it is imported.

They find mistakes and plain tricks, and are no sandbox: a person reads the file of a record too.
"""

import ast
import builtins
import importlib
import inspect
import math
from collections import Counter, defaultdict, deque
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.core.records.errors import RunFailed, UsageError, one_line
from gradwire.scoreboard.clusters import CLUSTERS

MOST_LINES, MOST_CHARACTERS, MOST_CONSTANTS = 150, 120, 2000
MODULES = ("collections", "collections.abc", "dataclasses", "math", "torch", "torch.nn.functional", "typing")
OF_PROJECT = (
    "strategies",
    "gradwire.compression",
    "gradwire.core.strategy",
    "gradwire.core.transports.inbox",
    "gradwire.core.transports.messages",
    "gradwire.core.records.errors",
)
SYNTAX = {
    *"Module Import ImportFrom alias ClassDef FunctionDef arguments arg Lambda Return Yield YieldFrom".split(),
    *"Expr Assign AnnAssign AugAssign Delete If For While Break Continue Pass With withitem Raise Assert".split(),
    *"Call keyword Attribute Name Load Store Del Constant Subscript Slice Starred JoinedStr FormattedValue".split(),
    *"Tuple List Set Dict ListComp SetComp DictComp GeneratorExp comprehension NamedExpr IfExp BoolOp And Or".split(),
    *"BinOp Add Sub Mult MatMult Div FloorDiv Mod Pow LShift RShift BitOr BitXor BitAnd".split(),
    *"UnaryOp Invert Not UAdd USub Compare Eq NotEq Lt LtE Gt GtE Is IsNot In NotIn".split(),
}
"""The kinds of nodes that a file may have, as `ast` names them: what strategies are written in. No match, no try."""
BUILTINS = {
    *"False None True abs all any bool bytes callable classmethod dict divmod enumerate filter float frozenset".split(),
    *"int isinstance issubclass iter len list map max min next pow print property range repr reversed round".split(),
    *"set slice sorted staticmethod str sum super tuple zip AssertionError Exception IndexError KeyError".split(),
    *"NotImplementedError RuntimeError SystemExit TypeError ValueError ZeroDivisionError".split(),
}
_IN_ANNOTATIONS = ast.Name | ast.Attribute | ast.Subscript | ast.Tuple | ast.BinOp | ast.BitOr | ast.Load
CONTRACT = """
    updater
    allocate b barrier blocks collect decode descent device done encode free g is_watched isend layout messages meters n
    n_ranks names nn object on_gradient optim param_groups parts peers rank rate recorder recv release replica samples
    sizes slices src state step steps_per_epoch tag tensor transport until version wait workers world_size x zero_grad
""".split()
"""The names that CONTRIBUTING.md has for a strategy, beside those of tensors and of Python's containers."""
_NO_NAMES = (
    "_", "set_", "register_", "save", "load", "from_file", "share_memory", "data_ptr", "manual_seed", "numpy", "format",
    "get_type_hints", "evaluate_", "make_dataclass", "PyTorchFile", "import_", "autocast_",
)  # fmt: skip
"""How names begin by which a file, another rank or the state of torch is reached."""
_INSIDE = {*"model ranks world network coroutine clock inbox module transports time_passes defaults".split()}
KNOWN = {
    name
    for thing in (torch, torch.nn, torch.optim, Tensor, F, math, dict, list, set, str, deque, Counter, defaultdict)
    for name in dir(thing)
    if not name.startswith(_NO_NAMES)
    and not isinstance(inspect.getattr_static(thing, name), ModuleType | dict | list | set)
} | {*CONTRACT}


def check_file(path: Path) -> None:
    """Check the rules. Raises RunFailed with the line that breaks one, UsageError if it cannot be read."""
    tree, lines = _parsed(path)
    if len(lines) > MOST_LINES or max(map(len, lines), default=0) > MOST_CHARACTERS:
        raise RunFailed(f"{path.name}: must have at most {MOST_LINES} lines of {MOST_CHARACTERS} characters")
    nodes = list(ast.walk(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own |= functions | {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    methods = [node for kind in classes for node in kind.body if isinstance(node, ast.FunctionDef) and node.args.args]
    selves = {method.args.args[0] for method in methods if {*map(ast.unparse, method.decorator_list)} <= {"property"}}
    unbound = {f"{kind.name}.{name}" for kind in classes for name in functions}
    docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and node not in docstrings]
    if sum(len(repr(node.value)) for node in constants) > MOST_CONSTANTS:
        raise RunFailed(f"{path.name}: has constants of more than {MOST_CONSTANTS} characters; train, do not store")
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        found = wrong_syntax(node) or _wrong(node, KNOWN | own - _INSIDE)
        if isinstance(node, ast.AnnAssign) and not _is_type(node.annotation, bound | {kind.name for kind in classes}):
            found = f"has the annotation {ast.unparse(node.annotation)}; annotate with builtin or imported types"
        elif isinstance(node, ast.arg) and node.arg == "self" and node not in selves:
            found = "calls an argument self that is not the object of a method"
        elif isinstance(node, ast.Name) and node.id == "self" and not isinstance(node.ctx, ast.Load):
            found = "assigns to self"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in unbound:
            found = f"uses {ast.unparse(node)}; call it of an object"
        if found:
            raise RunFailed(f"{path.name}, line {getattr(node, 'lineno', 1)}: {found}")


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


def wrong_syntax(node: ast.AST) -> str:
    """Return the fault of a node's kind, or of a name in it that a class or a module has by itself."""
    kind = type(node).__name__
    if kind not in SYNTAX:
        return f"uses {kind} of the module ast, which no strategy needs"
    if isinstance(node, ast.FunctionDef) and node.name in ("__init__", "__post_init__"):
        return ""
    names = [] if isinstance(node, ast.Attribute | ast.Constant) else [value for _, value in ast.iter_fields(node)]
    special = [name for name in names if isinstance(name, str) and name.startswith("__")]
    return f"uses {special[0]}, which no strategy needs" if special else ""


def _is_type(annotation: ast.expr, own: set[str]) -> bool:
    """Return whether an annotation is of types that the file does not make: a text in one would be evaluated."""
    for node in ast.walk(annotation):
        is_none = isinstance(node, ast.Constant) and node.value in (None, ...)
        if not (is_none or isinstance(node, _IN_ANNOTATIONS)) or (isinstance(node, ast.Name) and node.id in own):
            return False
    return True


def _wrong(node: ast.AST, known: set[str]) -> str:
    """Return the fault of a node; "": it has none."""
    match node:
        case ast.Import():
            for alias in node.names:
                if alias.name not in MODULES:
                    return f"imports {alias.name}; it may import {', '.join(MODULES)}; from others, names only"
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            if module not in MODULES and not f"{module}.".startswith(tuple(f"{package}." for package in OF_PROJECT)):
                return f"imports {module}; it may import {', '.join((*MODULES, *OF_PROJECT))}"
            for alias in node.names:
                value = getattr(importlib.import_module(module), alias.name, None)
                is_shared = hasattr(value, "cache_clear")  # all ranks have its result
                if alias.name.startswith(_NO_NAMES) or is_shared or not (callable(value) or is_constant(value)):
                    return f"imports {alias.name} from {module}; it may import classes, functions and constants"
        case ast.Name(id=name) if hasattr(builtins, name) and name not in BUILTINS:
            return f"uses {name}, which no strategy needs"
        case ast.Call(func=ast.Name(id="super"), args=[_, *_]):
            return "gives super() arguments, which no strategy needs"
        case ast.Attribute(attr=name):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            of_super = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super"
            if not isinstance(node.ctx, ast.Load) and not of_self and name != "grad":
                return f"assigns to {ast.unparse(node)}; assign to attributes of self only"
            if of_super and name in ("__init__", "__post_init__"):
                return ""
            if name.startswith("__") if of_self or of_super else name not in known or name.startswith("_"):
                return f"uses {ast.unparse(node)}, which is no part of the contract in CONTRIBUTING.md"
    return ""


def is_constant(value: object) -> bool:
    """Return whether nothing can be written into it, or it is the module torch.nn or its functions."""
    return isinstance(value, str | int | float | tuple | frozenset | torch.dtype) or value in (torch.nn, F)
