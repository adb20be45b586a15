"""The names of strategies and codecs, read from their tables without loading torch: typos are refused at once."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gradwire.arguments import check_name, value_of

_PROJECT = Path(__file__).resolve().parents[1]
CATALOGUE = _PROJECT / "strategies" / "catalogue.txt"
"""The text of `--list`, which `python -m docs.pages` makes."""
_TABLES = {"strategies": "FAMILIES", "gradwire/compression": "CLASSES"}


@cache
def names(package: str) -> list[str]:
    """Return the names of the table in this folder of the project, those of the modules; none without the folder."""
    file = _PROJECT / package / "__init__.py"
    if not file.exists():
        return []
    assigned = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.AnnAssign))
    value = next(node.value for node in assigned if ast.unparse(node.target) == _TABLES[package])
    table = ast.literal_eval(ast.unparse(value)) if value else {}
    places = (
        [place for group in table.values() for place in group.values()] if package == "strategies" else table.values()
    )
    return [place.rpartition(".")[2] for place in places]


def check_names(arguments: Sequence[str]) -> None:
    """Check the names that --strategy and --codec give on a command line. Raises UsageError."""
    for option, package in (("--strategy", "strategies"), ("--codec", "gradwire/compression")):
        if name := value_of(option, arguments):
            check_name(option, name, names(package), option == "--strategy")


def listed() -> str | None:
    """Return the text of `--list`; None if a name of the tables is not in it, so that it has to be made anew."""
    text = CATALOGUE.read_text(encoding="utf-8") if CATALOGUE.exists() else ""
    starts = [line.removeprefix("--codec ").split("  (")[0] for line in text.splitlines() if "  (" in line]
    return text.rstrip() if set(starts) >= {*names("strategies"), *names("gradwire/compression")} else None
