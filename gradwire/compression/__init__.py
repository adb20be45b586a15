"""How a vector looks on the wire: codecs, by the names of their files. A new one is one new file here.

All names are loaded when they are first asked for. Type checkers read them in `__init__.pyi`, which
`python -m docs.pages` makes.
"""

from pathlib import Path
from typing import Any

from gradwire.lazy import LazyTable, find_classes, load_name

CODECS: LazyTable[Any] = LazyTable(
    {file: (f"{__name__}.{file}", name) for file, name in find_classes(Path(__path__[0]), ("none",)).items()}
)
_BASE, _CODES = "gradwire.compression.codec", "gradwire.core.strategy.codes"
HOMES = {
    "Code": _BASE,
    "Codec": _BASE,
    "DENSE": _CODES,
    "GATHERED": _CODES,
    "KINDS": _CODES,
    "LINEAR": _CODES,
    "Layout": "gradwire.core.strategy.layout",
    "Setting": _BASE,
    **{name: module for module, name in CODECS.places.values()},
}
"""The module of each name that is loaded when it is asked for."""

__all__ = ["CODECS", *HOMES]


def __getattr__(name: str) -> Any:
    return load_name(__name__, name, HOMES)
