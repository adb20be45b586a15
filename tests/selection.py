"""`pytest --strategy NAME`, `--codec NAME`: all tests that are of one strategy or codec, wherever they are.

`--strategy yourmodule:YourClass` runs those of a class of your own, and `--codec yourmodule:YourCodec` likewise.
"""

import inspect
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import pytest

from gradwire.compression import Codec
from gradwire.core.records.errors import UsageError
from gradwire.core.workloads.lookup import import_user_object
from gradwire.names import class_of, strategy_class
from strategies import Strategy

_TESTS = Path(__file__).parent
_UNLESS_CHOSEN = pytest.mark.exhaustive("unless --strategy or --codec names it")
_FOLDERS = {"strategies": "strategies", "gradwire": "compression"}  # of the tests, by the first package of the source


def chosen_strategy(config: pytest.Config) -> type[Strategy] | None:
    """Return what `--strategy` names; None without it. Raises pytest.UsageError for what is none."""
    name = config.getoption("strategy")
    return _found(strategy_class, name) if name else None


def chosen_codec(config: pytest.Config) -> type[Codec] | None:
    """Return what `--codec` names; None without it. Raises pytest.UsageError for what is none."""
    name = config.getoption("codec")
    return _found(codec_named, name) if name else None


def codec_named(name: str) -> type[Codec]:
    """Return the class of a codec of the table, or of yourmodule:YourCodec. Raises UsageError."""
    if ":" not in name:
        return class_of("codec", name)
    found = import_user_object("--codec", name)
    if not (inspect.isclass(found) and issubclass(found, Codec)):
        raise UsageError(f"--codec {name}: is no class derived from gradwire.compression.Codec; derive it")
    return found


def by_default(few: Container[str], every: Iterable[str]) -> list[Any]:
    """Return `every` name as a parameter of a test: those of `few` are tried by default, and one that is chosen.

    The others are exhaustive.
    """
    return [pytest.param(name, marks=[] if name in few else _UNLESS_CHOSEN) for name in every]


def _found(find: Callable[[str], Any], name: str) -> Any:
    try:
        return find(name)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def keep_those_of(kind: type[Strategy] | type[Codec], config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all tests but those of `kind`: with it among their parameters, of its file, or of the whole table."""
    package, _, module = kind.__module__.rpartition(".")
    folder = _FOLDERS.get(package.split(".")[0])
    of_file = _TESTS / folder / f"test_{module}.py" if folder else None

    def is_it(value: Any) -> bool:
        if isinstance(value, str):
            return value in (kind.name, f"{kind.__module__.replace('.', '/')}.py")
        if isinstance(value, tuple | list):
            return any(map(is_it, value))
        return value is kind or type(value) is kind

    kept = [
        item
        for item in items
        if any(map(is_it, item.callspec.params.values() if hasattr(item, "callspec") else ()))
        or (folder and (item.path == of_file or item.get_closest_marker("of_every_strategy")))
    ]
    for item in kept:
        item.own_markers[:] = [mark for mark in item.own_markers if mark != _UNLESS_CHOSEN.mark]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
