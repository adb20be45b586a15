"""The sources of an algorithm: how records name their files, and whether these are still what ran.

A file of this project is named by its path in it, any other by its whole path.
"""

import hashlib
import linecache
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent


@cache
def name_of(file: str) -> str:
    """Return how records name a source file."""
    path = Path(file).resolve()
    return path.relative_to(_PROJECT).as_posix() if path.is_relative_to(_PROJECT) else str(path)


def text_of(name: str) -> str:
    """Return the text of a source, which may be a cell of this notebook; "" if it is gone."""
    path = str(_PROJECT / name)
    linecache.checkcache(path)
    return "".join(linecache.getlines(path))


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return by the name of each source the digest of its text, by which `unchanged` knows it again."""
    return {name: _digest(text_of(name)) for name in sorted(map(name_of, files))}


def unchanged(name: str, digest: str | None) -> str:
    """Return the text of a source; "" if it is gone, or is not the one with this digest."""
    text = text_of(name)
    return text if _digest(text) == digest else ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
