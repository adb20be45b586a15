"""Parse a command line; report an error in one line."""

import argparse
import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

from gradwire.core.records.errors import UsageError, unknown

T = TypeVar("T")


def check_name(option: str, name: str, known: Sequence[str], or_own: bool) -> None:
    """Check that `name` is `known`, or, with `or_own`, like yourmodule:YourClass. Raises UsageError."""
    if name not in known and not (or_own and ":" in name):
        raise unknown(option, name, known, "yourmodule:YourClass" if or_own else "")


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the last value of `option` in a command line; None if it is not there."""
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
        # tyro draws a box, or lines where none can be printed; the error stands between the first rules.
        parts = re.split("[─-]{5,}|Got errors:", re.sub("[│╭╮╰╯]", " ", said.getvalue()))
        text = " ".join((parts[1] if len(parts) > 1 else parts[0]).split()).rstrip(".")
        if missing := re.fullmatch(r"Missing from .*?: (.*)", text):
            text = "give " + " and ".join(part.split()[0] for part in missing[1].split("(required)") if part.strip())
        raise UsageError(f"{text}; see --help") from None
