"""What commands say of names, and of files with a hole, without running anything: this loads no torch."""

import ast
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from gradwire.core.records.errors import UsageError, nearest
from lessons.labs import LABS


def require_lab(name: str) -> None:
    """Raise UsageError if there is no lab of this name."""
    if name not in LABS:
        raise UsageError(f"{name}: there is no such lab; {nearest(name, LABS)}there are {', '.join(LABS)}")


def require_labs(name: str) -> None:
    """Raise UsageError if there is no lab of this name, and it is not "all"."""
    if name != "all":
        require_lab(name)


def require_file(path: str) -> None:
    """Raise UsageError if there is no such file."""
    if not Path(path).exists():
        raise UsageError(f"{path}: there is no such file; give the file with your functions")


def require_folder(path: str) -> None:
    """Raise UsageError if there is no such folder."""
    if not Path(path).is_dir():
        raise UsageError(f"{path}: there is no such folder; give that with a folder or a .py file for each student")


def refuse(*checks: Callable[[str], None]) -> None:
    """End this process, as after any bad usage, if a check raises UsageError for the argument in its place.

    Arguments behind the first option are not looked at.
    """
    given = sys.argv[1:]
    options = [i for i, argument in enumerate(given) if argument.startswith("-")]
    try:
        for check, argument in zip(checks, given[: min(options, default=len(given))], strict=False):
            check(argument)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def find_hole(lab: str, path: str) -> str:
    """Return what the check says of a file in which the first hole of the lab is not filled; "" if it is, or unknown.

    A hole is a function that does nothing but raise NotImplementedError. The first one is certain to be reached if
    what stands before it is as in the lab's own file; whether another one is, only a run can tell.
    """
    own = Path(__file__).with_name(f"{lab}.py")
    if not (lab.isidentifier() and own.is_file() and Path(path).is_file()):
        return ""
    try:
        given, file = _functions(own), _functions(Path(path))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return ""  # which the check says
    before = list(takewhile(lambda name: _hole(given[name]) is None, given))
    name = next((name for name in given if name not in before), "")
    hole = _hole(file[name]) if name in file else None
    if hole is None or any(name not in file or ast.dump(file[name]) != ast.dump(given[name]) for name in before):
        return ""
    line, text = hole
    text = " ".join("".join(c if c.isprintable() else " " for c in text[:500]).split())
    return f"{lab}: still to be written, line {line} of {Path(path).name}: {text or 'a hole'}\npoints: 0 of 100"


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_bytes())
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _hole(function: ast.FunctionDef) -> tuple[int, str] | None:
    """Return the line of the only statement of a function, after its docstring, and what it says, if it is a hole."""
    match function.body[1:] if ast.get_docstring(function) is not None else function.body:
        case [ast.Raise(exc=ast.Call(func=ast.Name("NotImplementedError"), args=[ast.Constant(str(text))])) as hole]:
            return hole.lineno, text
    return None
