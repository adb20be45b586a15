"""A command line is read, with one line for what is wrong in it.

The names of strategies and codecs are read from their tables without loading torch: typos are refused at once.
"""

import argparse
import ast
import contextlib
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from gradwire.core.records.errors import UsageError, unknown

T = TypeVar("T")

_PROJECT = Path(__file__).resolve().parents[3]
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


def check_name(option: str, name: str, known: Sequence[str], or_own: bool) -> None:
    """Check that `name` is `known`, or, with `or_own`, like yourmodule:YourClass. Raises UsageError."""
    if name not in known and not (or_own and ":" in name):
        raise unknown(option, name, known, "yourmodule:YourClass" if or_own else "")


def listed() -> str | None:
    """Return the text of `--list`; None if a name of the tables is not in it, so that it has to be made anew."""
    text = CATALOGUE.read_text(encoding="utf-8") if CATALOGUE.exists() else ""
    starts = [line.removeprefix("--codec ").split("  (")[0] for line in text.splitlines() if "  (" in line]
    return text.rstrip() if set(starts) >= {*names("strategies"), *names("gradwire/compression")} else None


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return what a command line gives for `option`, the last time; None if it does not give it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(option, dest="value", nargs="?")
    value: str | None = parser.parse_known_args(arguments)[0].value
    return value


def read_options(arguments: Sequence[str], kind: type[T], description: str) -> T:
    """Return the options, `kind` being a dataclass of them. Raises UsageError; SystemExit(0) after --help."""
    import tyro  # here, because a typo is refused before it is loaded

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, description=description, args=arguments, use_underscores=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        # tyro draws a box, or lines where none can be printed; what is wrong stands between the first rules.
        parts = re.split("[─-]{5,}|Got errors:", re.sub("[│╭╮╰╯]", " ", said.getvalue()))
        text = parts[1] if len(parts) > 1 else parts[0]
        raise UsageError(" ".join(text.split()).rstrip(".") + "; see --help") from None
