"""Write the course for students, without solutions: python -m lessons.release FOLDER

In place of the solutions it has their runs, messages and costs, of every case, whose inputs are always the same there.
The strategies stay, by which the labs train, and they are algorithms that labs ask for: lessons.grade, which runs where
the solutions are and draws inputs anew, flags who uses them.
"""

import sys

if __name__ == "__main__":
    from gradwire.ending import end_while_loading

    end_while_loading("nothing was written")  # what follows takes seconds to load

import pickle
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from gradwire.core.records.errors import UsageError
from lessons.check import run_solution
from lessons.judge import REFERENCES, draw
from lessons.lab import Lab, Run
from lessons.labs import LABS

PROJECT = Path(__file__).resolve().parent.parent
_MOST = 64  # elements of a result that costs may be made of


@dataclass(frozen=True)
class Settings:
    """Where the course goes."""

    folder: Annotated[str, Positional, arg(metavar="FOLDER")]
    """A folder that does not exist yet."""


def copy_course(folder: Path, *leave_out: str) -> None:
    """Copy what the labs need into a new folder."""
    tools = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages = [pattern.rstrip("*") for pattern in tools["packages"]["find"]["include"]]
    for name in ("lessons", "docs", "media", *packages):
        ignored = shutil.ignore_patterns("__pycache__", ".*", *leave_out)
        shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
    scripts = [path.name for path in PROJECT.glob("*.py")]
    for name in ("pyproject.toml", "requirements.txt", "constraints.txt", "README.md", "LICENSE", *scripts):
        shutil.copy2(PROJECT / name, folder / name)


def release(folder: Path) -> None:
    """Write the course without solutions into a new folder."""
    copy_course(folder, "solutions", "release.py", "autograder.py")
    references = folder / "lessons" / REFERENCES.name
    references.mkdir()
    for lab in LABS.values():
        kept = {case: keep_costs(lab, run_solution(lab, draw(lab, case, anew=False)))
                for case in (*lab.cases, lab.scored)}  # fmt: skip
        (references / f"{lab.name}.pickle").write_bytes(pickle.dumps(kept))


def keep_costs(lab: Lab, run: Run) -> Run:
    """Return a run without its inputs; of long vectors only their lengths."""
    for message in run.sent:
        message.vector, message.became = message.vector if message.vector is None else message.vector.to("meta"), None
    results = [{name: vector if vector.numel() <= _MOST else vector.to("meta") for name, vector in result.items()}
               for result in run.results]  # fmt: skip
    return replace(run, inputs=(), results=results)


def write_folder(folder: str, write: Callable[[Path], None]) -> None:
    """Write a new folder, all of it or nothing. Raises UsageError."""
    path = Path(folder).resolve()
    if path.exists():
        raise UsageError(f"{folder}: exists already; give another name, or remove it")
    try:
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as temporary:
            new = Path(temporary) / path.name
            new.mkdir()
            write(new)
            new.rename(path)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the course; return 0, 2 after bad usage, 128 + signal."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(lambda: write_folder(parse(given, Settings, __doc__ or "").folder, release))


if __name__ == "__main__":
    sys.exit(main())
