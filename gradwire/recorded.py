"""The options of a record or a checkpoint, to be used again."""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.strategy import Strategy
from gradwire.names import class_of, default_name
from gradwire.options import Options

NAMING_CODE = ("strategy", "dataset", "model", "task", "optimizer")
"""The options that may name yourmodule:something."""


def check_recorded(recorded: Mapping[str, Any], where: object, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `recorded` options of a run, each of its type; `chosen`: its strategy, or the class, and its codec.

    Raises UsageError, naming `where`; also if the run has another strategy or codec.
    """
    kinds: dict[str, Any] = {
        option: choice if isinstance(choice, type) else type(choice) for option, choice in chosen.items()
    }
    for option, kind in kinds.items():
        if (name := recorded.get(option, default_name(option))) != kind.name:
            raise UsageError(f"{where}: was made with --{option} {name}, not {kind.name}, which cannot change")
    types_of = _types(*kinds.values(), Options)
    if unknown := [key for key in recorded if key not in (*kinds, *types_of)]:
        raise UsageError(
            f"{where}: has --{unknown[0]}, which {kinds['strategy'].name} has not: written by another version of this "
            "program"
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
    kinds = {
        option: type(builtin)
        if builtin is not None and option == "strategy"
        else class_of(option, str(recorded.get(option, default_name(option))))
        for option in Options.choices()
    }
    values = check_recorded(recorded, where, kinds)
    values = {name: value for name, value in values.items() if name not in (*kinds, *new)}
    chosen: dict[str, Any] = {}
    for of, kind in kinds.items():
        own = [option.name for option in dataclasses.fields(kind) if option.name in values]
        chosen[of] = kind(**{name: values.pop(name) for name in own})
    return Options(**chosen, **values)


def check_recorded_code(recorded: Mapping[str, Any], where: object, given: Mapping[str, str | None]) -> None:
    """Check that the user trusts the code that the recorded options name.

    Trusted are modules that lie directly in the current folder, this package's own, and those `given` by name on the
    command line. Raises UsageError, naming `where`; nothing has been imported then.
    """
    for option in NAMING_CODE:
        name = recorded.get(option)
        if not isinstance(name, str) or ":" not in name or name == given.get(option):
            continue
        module = name.partition(":")[0]
        if module == "__main__":
            raise UsageError(f"{where}: names {name!r}, of the script or notebook that made the run; go on from there")
        is_here = module.isidentifier() and any(
            Path(file).is_file() for file in (f"{module}.py", f"{module}/__init__.py")
        )
        if not is_here and not module.startswith("gradwire."):
            raise UsageError(
                f"{where}: names the code {name!r}, which is no file of the current folder; "
                f"if you trust it, name it by --{option}"
            )


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
    return {name: hint for name, hint in hints.items() if name not in Options.choices()}


def _fits(value: object, kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        return any(_fits(value, member) for member in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind
