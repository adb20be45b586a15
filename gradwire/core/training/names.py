"""Strategies by name: those of the table, and yourmodule:YourClass; codecs; and options that were written by name.

Those of a record or a checkpoint are to be used again.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from gradwire.compression import CODECS, Codec, NoCodec
from gradwire.core.records.errors import UsageError
from gradwire.core.records.known import check_name
from gradwire.core.strategy.base import Strategy
from gradwire.core.training.options import Options, names_with_strategy_defaults, option_names
from gradwire.core.workloads.lookup import check_recorded_code, import_user_object
from gradwire.strategies import STRATEGIES


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of the strategy `name`, or of yourmodule:YourClass. Raises UsageError."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    check_name("--strategy", name, list(STRATEGIES), or_own=True)
    found = import_user_object("--strategy", name)
    if not (inspect.isclass(found) and issubclass(found, Strategy)):
        raise UsageError(f"--strategy {name}: is no class derived from strategies.Strategy; derive it")
    return check_class(found)


def check_class(strategy: type[Strategy]) -> type[Strategy]:
    """Check that a class defines all that a strategy or codec needs. Raises UsageError."""
    if inspect.isabstract(strategy):
        missing = ", ".join(sorted(strategy.__abstractmethods__))
        raise UsageError(f"--strategy {strategy.name}: has no {missing}; define it")
    if "__dataclass_fields__" not in vars(strategy):
        raise UsageError(f"--strategy {strategy.name}: decorate the class with @dataclass(kw_only=True)")
    for option in dataclasses.fields(strategy):
        if option.name in (*option_names(), "list", "help"):
            raise UsageError(f"--strategy {strategy.name}: its option {option.name} is one of every run; rename it")
        if option.default is option.default_factory is dataclasses.MISSING:
            raise UsageError(f"--strategy {strategy.name}: its option {option.name} has no default; give it one")
    for name in strategy.traits.defaults:
        if name not in names_with_strategy_defaults():
            known = ", ".join(names_with_strategy_defaults())
            raise UsageError(f"--strategy {strategy.name}: may set defaults of {known} only, not of {name}")
    return strategy


def make_strategy(name: str, **options: Any) -> Strategy:
    """Return the strategy `name` with these options: make_strategy("downpour", n_push=4). Raises UsageError."""
    strategy = strategy_class(name)
    known = [option.name for option in dataclasses.fields(strategy)]
    for option in options:
        if option not in known:
            raise UsageError(f"{name} has no option {option}; it has {', '.join(known) or 'none'}")
    return strategy(**options)


def codec_class(name: str) -> type[Codec]:
    """Return the class of a codec. Raises UsageError."""
    check_name("--codec", name, list(CODECS), or_own=False)
    return CODECS[name]


def owners_of(option: str) -> list[str]:
    """Return the strategies that have this option, and the codecs, each with --codec."""
    named: dict[str, Any] = {**STRATEGIES, **{f"--codec {name}": codec for name, codec in CODECS.items()}}
    return [name for name, one in named.items() if option in [field.name for field in dataclasses.fields(one)]]


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
    recorded: Mapping[str, Any], where: object, builtin: Strategy | None = None, new: Sequence[str] = (),
    given: Mapping[str, str | None] = MappingProxyType({}),
) -> Options:  # fmt: skip
    """Return the `recorded` options, but the defaults of those that are `new`. Raises UsageError, naming `where`.

    `builtin` is the only strategy that they may be of, if there is one. `given`: see `check_recorded_code`.
    """
    check_recorded_code(recorded, where, given)
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
