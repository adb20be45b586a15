"""The labs by name. A new one is one new file here, NAME.py, and the name and its class in this table."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessons.lab import Lab

_CLASSES = {
    "param_server": "Server", "ring": "Ring", "oracle": "Oracle", "not_waiting": "NotWaiting",
    "lost_updates": "LostUpdates", "links": "Links", "compression": "Compression", "sharding": "Sharding",
    "memory": "Memory", "logarithms": "Logarithms", "orders": "Orders", "seldom": "Seldom", "failures": "Failures",
    "bubble": "Bubble", "columns": "Columns", "experts": "Experts", "uneven": "Uneven",
}  # fmt: skip


@cache
def _load(name: str) -> "Lab":
    lab: Lab = getattr(import_module(f"lessons.labs.{name}"), _CLASSES[name])()
    return lab


class _Labs(Mapping[str, "Lab"]):
    """Loads a lab, and torch, when it is looked up; its names are known before."""

    def __getitem__(self, name: str) -> "Lab":
        return _load(name)

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


LABS: Mapping[str, "Lab"] = _Labs()
