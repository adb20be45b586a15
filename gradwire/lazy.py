"""Tables of classes that are found by their files, and loaded when they are first asked for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_CLASS = re.compile(r"\n@dataclass(?:\(kw_only=True\))?\nclass ([A-Z]\w*)\(([^)]*)\):")


class LazyTable(Mapping[str, T]):
    """Classes by name; each is imported on first use. `places` maps a name to its module and its name there."""

    def __init__(self, places: Mapping[str, tuple[str, str]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> T:
        module, kind = self._places[name]
        found: T = getattr(import_module(module), kind)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def places(self) -> Mapping[str, tuple[str, str]]:
        """The module and the name of each class."""
        return self._places


def find_classes(folder: Path, first: Sequence[str] = ()) -> dict[str, str]:
    """Return the class of each file of a folder by the name of the file, sorted, those named `first` before the others.

    It is the dataclass that derives from another class, but not from ABC, as abstract ones do; a file without one
    is left out. The files are read and not imported.
    """
    found = {}
    for file in folder.glob("[!_]*.py"):
        for name, bases in _CLASS.findall(file.read_text(encoding="utf-8")):
            if "ABC" not in re.findall(r"\w+", bases):
                found[file.stem] = name
    return {name: found[name] for name in sorted(found, key=lambda name: (name not in first, name))}


def load_name(package: str, name: str, homes: Mapping[str, str]) -> object:
    """Return the export `name` of a package from the module that `homes` gives: for its `__getattr__`.

    Raises AttributeError.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
