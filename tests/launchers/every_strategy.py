"""What each process does in `test_every_strategy`: run all strategies of the table, one after the other."""

import sys
from pathlib import Path
from typing import Any

from records.errors import UsageError
from tests.runs import KINDS, small, strategy_of
from training import run

SAME: dict[str, Any] = {"model": "tests.workload:batch_norm", "epochs": 3}  # for the synchronous ones, here as there
LEARN: dict[str, Any] = {"dataset": "digits", "model": "mlp", "epochs": 6, "batch_size": 32}
EXACT: dict[str, dict[str, Any]] = {"backup_workers": {"n_backup": 0}}  # with backups, the order of arrival decides


def run_all(folder: Path, names: list[str], **changes: Any) -> None:
    """Run the strategies, each recorded by its name in the folder; what is refused leaves the reason."""
    for name in names:
        own = LEARN if KINDS[name].asynchronous else SAME
        try:
            run(small(folder, strategy_of(name, **EXACT.get(name, {})), run_name=name, **own | changes), quiet=True)
        except UsageError as error:
            (folder / f"{name}.refused").write_text(str(error))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), sys.argv[2:])
