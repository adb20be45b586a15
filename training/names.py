"""Strategies by name: those of the table, and yourmodule:YourClass; and codecs."""

import dataclasses
import inspect
from typing import Any

from compression import CODECS, Codec
from records.errors import UsageError
from records.known import check_name
from strategies import STRATEGIES, Strategy
from training.options import names_with_strategy_defaults, option_names
from workloads.lookup import import_user_object


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
