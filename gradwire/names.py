"""Strategies by name, those of the table and yourmodule:YourClass, and codecs."""

import dataclasses
import inspect
from contextlib import suppress
from typing import Any

from gradwire.arguments import check_name
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.training.checks import check_class
from gradwire.core.workloads.lookup import import_user_object
from gradwire.options import Options
from gradwire.strategies import STRATEGIES


def strategy_class(name: str) -> type[Strategy]:
    """Return the class of the strategy `name`, or of yourmodule:YourClass. Raises UsageError."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    check_name("--strategy", name, list(STRATEGIES), or_own=True)
    found = import_user_object("--strategy", name)
    if not (inspect.isclass(found) and issubclass(found, Strategy)):
        raise UsageError(f"--strategy {name}: is no class derived from strategies.Strategy; derive it")
    return check_class(found, Options)


def make_strategy(name: str, **options: Any) -> Strategy:
    """Return the strategy `name` with these options: make_strategy("downpour", n_push=4). Raises UsageError."""
    strategy = strategy_class(name)
    known = [option.name for option in dataclasses.fields(strategy)]
    for option in options:
        if option not in known:
            raise UsageError(f"{name} has no option {option}; it has {', '.join(known) or 'none'}")
    return strategy(**options)


def class_of(option: str, name: str) -> type[Any]:
    """Return the class that an option such as --strategy or --codec names. Raises UsageError."""
    if option == "strategy":
        return strategy_class(name)
    table = Options.choices()[option].table
    check_name(f"--{option}", name, list(table), or_own=False)
    return table[name]


def owners_of(option: str) -> list[str]:
    """Return the strategies that have this option, and the codecs, each with --codec."""
    owners = []
    for of, choice in Options.choices().items():
        for name in choice.table:
            with suppress(ModuleNotFoundError):  # it needs a wing that is not here
                if option in [field.name for field in dataclasses.fields(choice.table[name])]:
                    owners.append(name if of == "strategy" else f"--{of} {name}")
    return owners


def default_name(option: str) -> str | None:
    """Return the value of an option such as --codec if a record lacks it; None: records always have it."""
    return None if option == "strategy" else next(iter(Options.choices()[option].table))
