"""Options that were written into a record or a checkpoint, and are to be used again."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from compression import Codec
from compression.none import NoCodec
from records.errors import UsageError
from strategies import Strategy
from training.names import codec_class, strategy_class
from training.options import Options


def check_recorded(
    recorded: Mapping[str, Any],
    where: object,
    strategy: type[Strategy] | None = None,
    codec: type[Codec] | None = None,
) -> dict[str, Any]:
    """Return those of the `recorded` options that a run, its `strategy` and its `codec` have, each of its type.

    Raises UsageError, naming `where`; also if it is a run with another strategy or codec.
    """
    name, codec_name = recorded.get("strategy"), recorded.get("codec", NoCodec.name)
    if not isinstance(name, str):
        raise UsageError(f"{where}: names no strategy: not written by this program")
    if not isinstance(codec_name, str):
        raise UsageError(f"{where}: names no codec: not written by this program")
    if strategy is not None and name != strategy.name:
        raise UsageError(f"{where}: was made with --strategy {name}, not {strategy.name}, which cannot change")
    if codec is not None and codec_name != codec.name:
        raise UsageError(f"{where}: was made with --codec {codec_name}, not {codec.name}, which cannot change")
    values: dict[str, Any] = {"strategy": name, "codec": codec_name}
    types_of = _types(*filter(None, (strategy, codec)), Options)
    if strategy is not None and (unknown := [key for key in recorded if key not in ("strategy", "codec", *types_of)]):
        raise UsageError(
            f"{where}: has --{unknown[0]}, which {name} has not: written by another version of this program"
        )
    for option, hint in types_of.items():
        if option in recorded:
            value = tuple(recorded[option]) if isinstance(recorded[option], list) else recorded[option]
            if not _fits(value, hint):
                raise UsageError(f"{where}: has {value!r} for --{option}: not written by this program")
            values[option] = value
    return values


def options_from(
    recorded: Mapping[str, Any], where: object, builtin: Strategy | None = None, new: Sequence[str] = ()
) -> Options:
    """Return the `recorded` options, but the defaults of those that are `new`. Raises UsageError, naming `where`.

    `builtin` is the only strategy that they may be of, if there is one.
    """
    names = check_recorded(recorded, where)
    strategy = type(builtin) if builtin is not None else strategy_class(names["strategy"])
    codec = codec_class(names["codec"])
    values = check_recorded(recorded, where, strategy, codec)
    values = {name: value for name, value in values.items() if name not in ("strategy", "codec", *new)}
    own, of_codec = (
        {option.name: values.pop(option.name) for option in dataclasses.fields(kind) if option.name in values}
        for kind in (strategy, codec)
    )
    return Options(strategy=strategy(**own), codec=codec(**of_codec), **values)


@contextmanager
def naming(option: str) -> Iterator[None]:
    """Begin the errors of the block with the option that named the file."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option} {error}") from error


def _types(*owners: type[Any]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for owner in owners:
        of_owner = typing.get_type_hints(owner)
        hints |= {option.name: of_owner[option.name] for option in dataclasses.fields(owner)}
    return {name: hint for name, hint in hints.items() if name not in ("strategy", "codec")}


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind
