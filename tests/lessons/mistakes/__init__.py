"""Typical mistakes of each lab: how each changes the solution, and what the check must say of it."""

import ast
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias

from lessons.check import SOLUTIONS

Change: TypeAlias = tuple[str, str] | str  # (old, new), where `old` occurs once; or a whole function


class Mistake:
    """One mistake: the kind of the verdict, its points, a part of its line, and the changes that make it."""

    def __init__(self, name: str, kind: str, points: int, text: str, *changes: Change) -> None:
        self.name, self.kind, self.points, self.text, self.changes = name, kind, points, text, changes


def mistakes_of(lab: str) -> dict[str, Mistake]:
    """Return the mistakes of a lab by name."""
    return {mistake.name: mistake for mistake in import_module(f"tests.lessons.mistakes.{lab}").MISTAKES}


def solution(lab: str, *changes: Change) -> str:
    """Return the text of a lab's solution with these changes."""
    source = (SOLUTIONS / f"{lab}.py").read_text()
    for change in changes:
        if isinstance(change, str):
            (new,) = ast.parse(change).body
            (old,) = (
                part for part in ast.parse(source).body if getattr(part, "name", "") == getattr(new, "name", None)
            )
            change = ast.get_source_segment(source, old) or "", change
        assert source.count(change[0]) == 1, f"{lab}.py has {change[0]!r} {source.count(change[0])} times"
        source = source.replace(*change)
    return source


def write(folder: Path, lab: str, *changes: Change, name: str = "mine") -> str:
    """Write this solution into a folder; return the path of the file."""
    path = folder / f"{name}.py"
    path.write_text(solution(lab, *changes))
    return str(path)


def defined(source: str) -> SimpleNamespace:
    """Return what a text of Python defines."""
    namespace: dict[str, object] = {}
    exec(compile(source, "<mistake>", "exec"), namespace)
    return SimpleNamespace(**namespace)
