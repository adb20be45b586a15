"""Reading a command line, with one line for what is wrong in it."""

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

from records.errors import UsageError

T = TypeVar("T")


def read_options(arguments: Sequence[str], kind: type[T], description: str) -> T:
    """Return the options, `kind` being a dataclass of them. Raises UsageError; SystemExit(0) after --help."""
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
