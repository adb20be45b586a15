"""Options that were written into a record or a checkpoint, and are to be used again."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from compression import Codec, NoCodec
from records.errors import UsageError
from strategies import Strategy
from training.names import codec_class, strategy_class
from training.options import Options


def check_recorded(
    recorded: Mapping[str, Any], where: object, strategy: type[Strategy], codec: type[Codec]
) -> dict[str, Any]:
    """Return the `recorded` options of a run with this strategy and codec, each of its type.

    Raises UsageError, naming `where`; also if the run has another strategy or codec.
    """
    for option, kind in (("strategy", strategy), ("codec", codec)):
        if (name := recorded.get(option, NoCodec.name if kind is codec else None)) != kind.name:
            raise UsageError(f"{where}: was made with --{option} {name}, not {kind.name}, which cannot change")
    types_of = _types(strategy, codec, Options)
    if unknown := [key for key in recorded if key not in ("strategy", "codec", *types_of)]:
        raise UsageError(
            f"{where}: has --{unknown[0]}, which {strategy.name} has not: written by another version of this program"
        )
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in recorded.items()}
    for option, hint in types_of.items():
        if option in values and not _fits(values[option], hint):
            raise UsageError(f"{where}: has {values[option]!r} for --{option}: not written by this program")
    return values


def options_from(
    recorded: Mapping[str, Any], where: object, builtin: Strategy | None = None, new: Sequence[str] = ()
) -> Options:
    """Return the `recorded` options, but the defaults of those that are `new`. Raises UsageError, naming `where`.

    `builtin` is the only strategy that they may be of, if there is one.
    """
    strategy = type(builtin) if builtin is not None else strategy_class(str(recorded.get("strategy")))
    codec = codec_class(str(recorded.get("codec", NoCodec.name)))
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
