"""What is found wrong in a run, and its text."""

import linecache
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """`what`: the class and what was seen. `at`: the line of the script. `is_note`: it may well be meant."""

    kind: str
    what: str
    cure: str
    at: str = ""
    is_note: bool = False
    step: int | None = None
    rank: int | None = None
    parameter: str = ""

    def text(self, folder: str) -> str:
        """Return it as two or three lines, with the line of the script in that folder."""
        file, _, line = self.at.rpartition(":")
        source = linecache.getline(folder + file, int(line)).strip() if line.isdigit() else ""
        lines = [f"{'note: ' if self.is_note else ''}{self.kind}: {self.what}"]
        lines += [f"    {self.at}  {source}"] if self.at else []
        return "\n".join([*lines, f"    cure: {self.cure}"])

    def as_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)
