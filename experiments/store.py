"""What is kept of an experiment in a folder: EXPERIMENT.csv has the rows of its runs, EXPERIMENT.json the facts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from records.atomic import AnyPath, write_together
from records.errors import UsageError, one_line


class Store:
    """The results of one experiment: a `table` and `facts`; every change is written at once, both files or none.

    Raises UsageError if a file is damaged.
    """

    columns: Mapping[str, Any] = {}  # those that the table has in any case, and their types

    def __init__(self, folder: AnyPath, experiment: str) -> None:
        self.folder = Path(folder)
        self.paths = [self.folder / f"{experiment}{suffix}" for suffix in (".csv", ".json")]
        self.table, self.facts = pd.DataFrame(columns=list(self.columns)), dict[str, Any]()
        if any(path.exists() for path in self.paths):
            try:
                self.facts = json.loads(self.paths[1].read_text(encoding="utf-8"))
                # Otherwise a strategy called "none" would be read as a missing value.
                table = pd.read_csv(self.paths[0], dtype=self.columns, keep_default_na=False, na_values=[""])
                self.load(table)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"{folder}: the results of {experiment} are damaged ({one_line(error)}); take "
                    f"{' and '.join(path.name for path in self.paths)} from the repository again, or delete them and "
                    "measure again"
                ) from error

    def load(self, table: pd.DataFrame) -> None:
        """Take over what was read: `table`, beside the facts."""
        self.table = table

    def written(self) -> dict[str, Any]:
        """Return the facts as they are written."""
        return self.facts

    def append(self, rows: pd.DataFrame) -> None:
        """Add the rows of a run, and write both files. Raises OSError."""
        self.table = pd.concat([self.table, rows], ignore_index=True) if len(self.table) else rows
        columns = dict.fromkeys([*self.columns, *self.table])
        with write_together(self.paths) as (csv, facts):
            self.table.reindex(columns=list(columns)).to_csv(csv, index=False, float_format="%.7g")
            facts.write_text(json.dumps(self.written(), indent=1) + "\n", encoding="utf-8")
