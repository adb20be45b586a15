"""What a student has handed in: the file that is graded, what it uses that it should not, and a key for its verdict."""

import ast
import hashlib
import re
from contextlib import suppress
from pathlib import Path

from lessons.lab import Fault, Lab
from lessons.labs import LABS

LESSONS = Path(__file__).parent
_SOLVED = re.compile(
    r"\blessons\b.*\b(solutions|labs)\b|\bstrategies\b|\b(importlib|__import__|runpy|eval|exec)\b|\bsys\.modules\b"
)


def files_of(submission: Path) -> list[Path]:
    """Return the .py files of a submission that are not hidden, those nearest to its top first."""
    if not submission.is_dir():
        return [submission]
    paths = sorted(submission.rglob("*.py"), key=lambda path: (len(path.parts), path))
    return [path for path in paths
            if path.is_file() and not any(part[0] == "." for part in path.relative_to(submission).parts)]  # fmt: skip


def refuse_links(submission: Path) -> None:
    """Raise Fault if a submission is a link, or has one that leads out of it: to a solution, or another submission."""
    for path in (submission, *(submission.rglob("*") if submission.is_dir() else ())):
        if path.is_symlink() and not path.resolve().is_relative_to(submission):
            name = path.relative_to(submission.parent)
            raise Fault("link", f"{name} is a link to what was not handed in; hand in the file itself")


def find_file(lab: Lab, submission: Path, alone: bool) -> Path:
    """Return the file of a lab: its NAME.py nearest to the top, else the only one that defines its functions.

    `alone`: no other lab is graded, so that a submission's only file is this one's. Raises Fault.
    """
    files = files_of(submission)
    if alone and len(files) == 1:
        return files[0]
    own = [path for path in files if path.stem == lab.name]
    found = [path for path in own if len(path.parts) == len(own[0].parts)]
    found = found or [path for path in files if path.stem not in LABS and _is_of(lab, path)]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(submission)) for path in found)
        raise Fault("absent", f"which file is it? {names}; name one {lab.name}.py, or leave the others out")
    if not found:
        raise Fault("absent", f"there is no {lab.name}.py, and no file that defines {', '.join(lab.functions)}")
    return found[0]


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, one a statement, without comments and docstrings; none if Python cannot read it."""
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):  # which the check says
        tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""
        return ast.unparse(tree).splitlines()
    return []


def _is_of(lab: Lab, path: Path) -> bool:
    """Whether a file defines a lab's functions, and not those of another one that has the same and more."""
    defined = {line[4:].partition("(")[0] for line in _lines(path) if line.startswith("def ")}
    mine = set(lab.functions)
    return mine <= defined and not any(mine < set(other.functions) <= defined for other in LABS.values())


def find_flags(lab: Lab, file: Path, submission: Path) -> list[str]:
    """Return the lines of a file, and of those beside it that are no lab's, that name solutions or strategies.

    And those that can use them without their names. A line that names no more than the lab's own file does not count.
    """
    given = {word for line in _lines(LESSONS / f"{lab.name}.py") if _SOLVED.search(line) for word in _words(line)}
    others = [path for path in files_of(submission) if path != file and path.stem not in LABS]
    files = [file, *(path for path in others if not any(_is_of(other, path) for other in LABS.values()))]
    return [f"{path.name} has {line.strip()[:100]}"
            for path in files for line in _lines(path) if _SOLVED.search(line) and _words(line) - given]  # fmt: skip


def _words(line: str) -> set[str]:
    return set(re.findall(r"\w+", line))


def key_of(lab: Lab, submission: Path) -> str:
    """Return a key of what a verdict depends on: the lab, the submission's files, and the lessons'."""
    digest = hashlib.sha256(ascii((lab.name, submission.name)).encode())
    for path in (*sorted(LESSONS.rglob("*.py")), *files_of(submission)):
        digest.update(f"\n{path.name!a}\n".encode())
        with suppress(OSError):  # the verdict says that it cannot be read
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
