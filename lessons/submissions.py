"""What a student has handed in: the file that is graded, what it uses that it should not, and a key for its verdict."""

import ast
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from lessons.lab import Fault, Lab
from lessons.labs import LABS

LESSONS = Path(__file__).parent
_SOLVED = re.compile(r"\blessons[./]solutions\b|\bstrategies[./]\w|^strategies$")


def files_of(submission: Path) -> list[Path]:
    """Return the files of a submission that are not hidden, those nearest to its top first."""
    if not submission.is_dir():
        return [submission]
    paths = sorted(submission.rglob("*"), key=lambda path: (len(path.parts), path))
    return [path for path in paths if path.is_file() and not any(
        part[0] == "." or part == "__pycache__" for part in path.relative_to(submission).parts)]  # fmt: skip


def find_file(lab: Lab, submission: Path, alone: bool) -> Path:
    """Return the file of a lab: its NAME.py nearest to the top, else the only one that defines its functions.

    `alone`: no other lab is graded, so that the only file is this one's, whatever it defines. Raises Fault.
    """
    sources = [path for path in files_of(submission) if path.suffix == ".py"]
    own = [path for path in sources if path.stem == lab.name]
    own = [path for path in own if len(path.parts) == len(own[0].parts)]
    others = [path for path in sources if path.stem not in LABS]
    found = own or [path for path in others if _is_of(lab, path)]
    if alone and not found:
        found = others if len(others) == 1 else []
    if alone and not submission.is_dir():
        return submission
    if not found:
        raise Fault("absent", f"there is no {lab.name}.py, and no file that defines {', '.join(lab.functions)}")
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(submission)) for path in found)
        raise Fault("absent", f"which file is it? {names}; name one {lab.name}.py, or leave the others out")
    return found[0]


def _is_of(lab: Lab, path: Path) -> bool:
    """Whether a file defines a lab's functions, and not those of another one that has the same and more."""
    tree = _parse(path)
    defined = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)} if tree else set()
    labs = [set(one.functions) for one in LABS.values() if defined.issuperset(one.functions)]
    mine = set(lab.functions)
    return mine in labs and not any(mine < other for other in labs)


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None  # which the check says


def find_flags(lab: Lab, file: Path, submission: Path) -> list[str]:
    """Return what a file, and those beside it that are no lab's, uses of solutions and strategies.

    What the lab's own file imports does not count.
    """
    given = set(_uses(LESSONS / f"{lab.name}.py"))
    files = [file] + [path for path in files_of(submission)
                      if path.suffix == ".py" and path != file and path.stem not in LABS]  # fmt: skip
    found = {name: f"uses {name[:100]!r}, line {line} of {path.name}"
             for path in files for name, line in _uses(path).items() if name not in given}  # fmt: skip
    return [*found.values()]


def _uses(path: Path) -> dict[str, int]:
    """Return the lines of what looks like a solution or a strategy: imported, an attribute, or in a string."""
    tree = _parse(path) or ast.Module([], [])
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.stmt) and id(node) not in texts)
    return {name: node.lineno for node in nodes for name in _names(node) if _SOLVED.search(name)}


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (one.name for one in names)
        case ast.ImportFrom(module=str(module), names=names):
            yield from (f"{module}.{one.name}" for one in names)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            yield f"{name}.{attribute}"
        case ast.Constant(value=str(text)):
            yield text


def key_of(lab: Lab, submission: Path) -> str:
    """Return a key of what a verdict depends on: the lab, the submission's files, and the lessons'."""
    digest = hashlib.sha256(f"{lab.name} {_digest_of_lessons()}".encode())
    for path in files_of(submission):
        digest.update(f"\n{path.relative_to(submission.parent)}\n".encode())
        with suppress(OSError), open(path, "rb") as file:  # else the verdict says that it cannot be read
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


@cache
def _digest_of_lessons() -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(LESSONS.rglob("*.py")))).hexdigest()
