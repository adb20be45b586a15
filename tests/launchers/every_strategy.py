"""What each process does in `test_every_strategy`: run all strategies of the table, one after the other."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from records.errors import UsageError
from strategies import STRATEGIES, Strategy
from tests.runs import KINDS, small, strategy_of
from tests.strategies.loops import NEEDS, allows, other_value
from training import run

RANKS = 3
SAME: dict[str, Any] = {"model": "tests.workload:batch_norm", "epochs": 3}  # here as there
EXACT: dict[str, dict[str, Any]] = {"backup_workers": {"n_backup": 0}}  # with backups, the order of arrival decides
CASES: dict[str, Strategy] = {name: strategy_of(name, **EXACT.get(name, {})) for name in KINDS}
"""Every strategy, and each with every option away from its default, by what its records are called."""
for _name, _kind in STRATEGIES.items():
    for _option in (field.name for field in dataclasses.fields(_kind)):
        _value = other_value(_kind(), _option)
        _other = _kind(**{_option: _value} | NEEDS.get(_option, {}))
        if allows(_other, RANKS):
            CASES[f"{_name} {_option} {_value}"] = _other


def run_all(folder: Path, **changes: Any) -> None:
    """Run CASES, each recorded by its name in the folder; what is refused leaves the reason."""
    for name, strategy in CASES.items():
        try:
            run(small(folder, dataclasses.replace(strategy), run_name=name, **SAME | changes), quiet=True)
        except UsageError as error:
            (folder / f"{name}.refused").write_text(str(error))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
