"""Options that were written into a record or a checkpoint, and are to be used again."""

import types
import typing
from collections.abc import Mapping
from typing import Any

from records.errors import UsageError
from training.options import Options, option_names


def options_from(recorded: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Return those of the `recorded` options that there are, each of its type. Raises UsageError, naming `where`."""
    kinds = typing.get_type_hints(Options)
    values = {}
    for name in set(option_names()) & set(recorded):
        value = tuple(recorded[name]) if isinstance(recorded[name], list) else recorded[name]
        if not _fits(value, kinds[name]):
            raise UsageError(f"{where}: has {value!r} for --{name}: not written by this program")
        values[name] = value
    return values


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind
