"""A student's functions: where they are, how they are loaded, and the Fault for what they raise."""

import ast
import linecache
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle

from gradwire.core.records.errors import one_line
from lessons.lab import Fault

_NAME = "your_file"  # of the module that a student's file is run as
_LONGEST = 1000  # characters of a student's text
_VIEWS = ("view", "view_as", "reshape", "flatten", "detach", "squeeze", "unsqueeze", "contiguous", "narrow", "ravel")
# Hints for the commonest exceptions: a part of their text, and a part of the student's line.
_HINTS = (
    ("'tuple' object does not support item assignment", "+=", "a tuple's elements are not assigned: add in place, "
     "chunks[i].add_(received.vector)"),
    ("'tuple' object does not support item assignment", "", "a tuple's elements are not assigned: write into the "
     "tensor, chunks[i].copy_(...)"),
    ("Message", "", "recv returns a message; the tensor in it is received.vector"),
    ("The size of tensor", "", "the two differ in length: are they chunks of the same number?"),
    ("list indices must be integers", "", "`/` gives a float; `//` divides whole numbers"),
    ("tuple indices must be integers", "", "`/` gives a float; `//` divides whole numbers"),
    ("tuple index out of range", "", "chunks are numbered 0 .. N - 1: take the number mod N; torch.tensor_split gives "
     "N of them, torch.chunk may give fewer"),
    ("required positional argument: 'tag'", "", "a message has a tag: isend(tensor, dst, tag), recv(src, tag)"),
    ("split_with_sizes expects", "all_to_all", "all_to_all_single(output, input, rows of the output, rows of the "
     "input): the output comes first; without the last two, all ranks get equally many"),
    ("modified by an inplace operation", "", "the backward pass needs what was written over: write into a tensor of "
     "its own, such as a clone"),
    *((error, "", "what works in place returns None: use the vector itself") for error in (
        "'NoneType' object has no attribute", "'NoneType' object is not subscriptable", "for /: 'NoneType'",
        "for *: 'NoneType'")),
)  # fmt: skip


@lru_cache
def _compile(text: bytes, path: str) -> CodeType:
    return compile(text, path, "exec", dont_inherit=True)


def _run_file(path: str) -> dict[str, Any]:
    """Run a file, which is compiled once, as a module of its own; return its globals."""
    if (folder := str(Path(path).parent)) not in sys.path:
        sys.path.append(folder)
    code, module = _compile(Path(path).read_bytes(), path), ModuleType(_NAME)
    module.__file__ = path
    sys.modules[_NAME] = module  # where a dataclass looks for what its annotations name
    try:
        exec(code, vars(module))
    finally:
        sys.modules.pop(_NAME, None)
    return vars(module)


def _namespace(function: object) -> dict[str, Any]:
    """Return the globals of a function, nothing of what is none."""
    return function.__globals__ if isinstance(function, FunctionType) else {}


def _named(code: CodeType, file: str) -> CodeType:
    """Return code, and what is defined in it, with the name of its file: cloudpickle 3.1.3 leaves that out."""
    parts = tuple(_named(part, file) if isinstance(part, CodeType) else part for part in code.co_consts)
    return code.replace(co_filename=file, co_consts=parts)


@dataclass(frozen=True)
class Source:
    """Functions in a file, or, from a notebook, by value; `texts` has the student's lines by the name of their file."""

    path: str = ""
    by_value: bytes = b""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)  # of functions by value

    @classmethod
    def of_file(cls, path: Path) -> "Source":
        """Return the functions of this file. Raises OSError."""
        name = str(path.resolve())
        return cls(name, texts={name: path.read_text(encoding="utf-8", errors="replace")})

    @classmethod
    def of_cells(cls, functions: Mapping[str, Callable[..., Any]]) -> "Source":
        """Return these functions by name, with the lines of all cells, which IPython has put into `linecache`."""
        texts = {name: "".join(entry[2]) for name, entry in linecache.cache.items()
                 if len(entry) > 2 and ("ipykernel" in name or name.startswith("<"))}  # fmt: skip
        known = {name: value for function in functions.values() for name, value in _namespace(function).items()}
        files = {name: value.__code__.co_filename for name, value in {**known, **functions}.items()
                 if isinstance(value, FunctionType) and value.__code__.co_filename in texts}  # fmt: skip
        return cls(by_value=cloudpickle.dumps(dict(functions)), texts=texts, files=files)

    def load(self, names: Sequence[str]) -> SimpleNamespace:
        """Return the functions, with globals of their own. Raises Fault if one is missing, or the file raises."""
        try:
            found = cloudpickle.loads(self.by_value) if self.by_value else _run_file(self.path)
            for known in (found, *map(_namespace, found.values())) if self.files else ():
                for name in self.files.keys() & known:
                    if isinstance(function := known[name], FunctionType):
                        function.__code__ = _named(function.__code__, self.files[name])
        except BaseException as error:
            raise self.explain(error, "") from error
        for name in names:
            if not callable(found.get(name)):
                raise Fault("missing", f"there is no function {name}; define it, at the left margin")
        return SimpleNamespace(**{name: found[name] for name in names})

    def place(self, file: str, line: int | str) -> str:
        """Return a line of the student's in words: its number, its file, its text."""
        lines, number = self.texts[file].split("\n"), int(line)
        text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return f"line {number} of {Path(file).name if self.path else 'the cell'}" + (f" ({text})" if text else "")

    def explain(self, error: BaseException, where: str) -> Fault:
        """Return the Fault for an exception: its text, the student's line, and the call: the lab's note, or `where`.

        Without `where` it was raised while the functions were loaded.
        """
        if isinstance(error, Fault):
            return error
        frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
        own = [frame for frame in frames if frame[0] in self.texts]
        if isinstance(error, SyntaxError) and error.filename in self.texts:
            own = [(error.filename or "", error.lineno or 0)]
        at = self.place(*own[-1]) if own else "where the lab calls your function, or uses its result"
        text = one_line(error)[:_LONGEST]
        if not where:
            return Fault("import", f"cannot be imported: {text}" + (f", {at}" if own else ""))
        if isinstance(error, NotImplementedError) and (not own or "raise NotImplementedError" in at):
            return Fault("hole", f"still to be written, {at.partition(' (')[0]}: {str(error)[:_LONGEST] or 'a hole'}")
        hints = [f"; {hint}" for part, line, hint in _HINTS if part in text and line in at][:1]
        return Fault(
            "raised", "".join([f"{[where, *getattr(error, '__notes__', [])][-1]} raised {text}, {at}", *hints])
        )

    def explain_new_tensor(self, names: Collection[str], verdict: str) -> str:
        """Return which line gives a parameter of these names, which is to change in place, to a new tensor made of it.

        Nothing if the `verdict` says something of new tensors already.
        """
        for file, text in self.texts.items() if "new tensor" not in verdict else ():
            with suppress(SyntaxError, ValueError, RecursionError):  # of a cell with what only IPython reads
                for line, name in _rebound(ast.parse(text), names):
                    return (f"; {self.place(file, line)} makes a new tensor, and the caller's {name} stays as it is: "
                            f"change it in place, {name}.copy_(...)")  # fmt: skip
        return ""


def _rebound(tree: ast.Module, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that rebind a parameter with one of these names to a value computed from it."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        own = {argument.arg for argument in function.args.args}.intersection(names)
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) if name in own and _is_new(value):
                    if any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)):
                        yield node.lineno, name


def _is_new(value: ast.expr) -> bool:
    """Whether an expression makes a new tensor: not by a method in place, or one that gives a view."""
    match value:
        case ast.Call(func=ast.Attribute(attr=method), keywords=keywords):
            in_place = method.endswith("_") or any(keyword.arg == "out" for keyword in keywords)
            return not in_place and method not in _VIEWS
    return isinstance(value, ast.BinOp)
