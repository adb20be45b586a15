"""`pytest --strategy NAME`: all tests that are of one strategy, wherever they are; or those of yourmodule:YourClass."""

from pathlib import Path
from typing import Any

import pytest

from gradwire.core.records.errors import UsageError
from gradwire.core.training.names import strategy_class
from strategies import Strategy

_STRATEGIES = Path(__file__).parent / "strategies"


def chosen_strategy(config: pytest.Config) -> type[Strategy] | None:
    """Return what `--strategy` names; None without it. Raises pytest.UsageError for what is none."""
    name = config.getoption("strategy")
    try:
        return strategy_class(name) if name else None
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def keep_those_of(kind: type[Strategy], config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all tests but those of `kind`: with it among their parameters, of its file, or of the whole table."""
    package, _, module = kind.__module__.rpartition(".")
    is_of_the_table = package.split(".")[0] == "strategies"
    of_file = _STRATEGIES / f"test_{module}.py"

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
        or (is_of_the_table and (item.path == of_file or item.get_closest_marker("of_every_strategy")))
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
