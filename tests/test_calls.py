"""The picture of which file calls which: that its files and functions are there, and call one another by name."""

import ast
import re

from docs.calls import BEGIN, END, PAGE
from tests.runs import ROOT

PICTURE = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
LINE = re.compile(r"^  (\S+\.py) +(.+)$", re.MULTILINE)


def names(file: str) -> set[str]:
    """The functions of a file, each also with the classes and functions that it is in."""

    def visit(node: ast.AST, inside: str) -> set[str]:
        found = set()
        for child in ast.iter_child_nodes(node):
            own = inside
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                own = f"{inside}.{child.name}".lstrip(".")
                found.add(own)
            found |= visit(child, own)
        return found

    return visit(ast.parse((ROOT / file).read_text(encoding="utf-8")), "") | {"<module>"}


def test_the_files_and_functions_of_the_picture_are_there() -> None:
    lines = LINE.findall(PICTURE)
    assert len(lines) > 10
    missing = [
        (file, function)
        for file, functions in lines
        for function in functions.split(", ")
        if not (ROOT / file).exists() or function not in names(file)
    ]
    assert not missing, "python -m docs.calls"


def test_every_room_has_its_line() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "rooms.md").read_text(), re.MULTILINE)
    core, package = ROOT / "gradwire" / "core", ROOT / "gradwire"
    rooms = [path.parent.name for folder in (core, package) for path in folder.glob("*/__init__.py")]
    assert sorted(rows) == sorted(set(rooms) - {"core"})
