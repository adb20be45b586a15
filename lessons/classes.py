"""Report on a class: python -m lessons.classes grades.csv

Reads the grades that `python -m lessons.grade` has written. For each lab: how many have passed, the medians of
the points and of the seconds that judging took, and the first mistakes, with how many made each. Mistakes that differ
in numbers, in the case, and in the student's lines, count as one.
"""

import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

from tyro.conf import Positional, arg

from gradwire.command_line import parse, run_command
from gradwire.core.records.errors import UsageError

_COLUMNS = {"lab", "points", "kind", "first mistake"}
_LONGEST = 200  # characters of a mistake
_SAME = (  # what differs from student to student, and what stands for it
    (r" \(.*\)", ""),
    (r"line \d+ of [^\s:;,]+", "a line"),
    (r"\d[\d,.]*(?<![,.])", "#"),
    (r"#(, #)+", "#"),
    (r"\bN = #[^:]*: (rank #: )?", ""),  # the case
)


@dataclass(frozen=True)
class Settings:
    """Which class."""

    grades: Annotated[str, Positional, arg(metavar="GRADES")]
    """The grades.csv of lessons.grade."""
    most: int = 5
    """How many mistakes of a lab are shown."""


def alike(mistake: str) -> str:
    """Return a mistake without what differs from student to student: numbers, lines, the case, and brackets."""
    for pattern, name in _SAME:
        mistake = re.sub(pattern, name, mistake)
    return mistake[:_LONGEST]


def report(rows: Sequence[dict[str, str]], most: int) -> str:
    """Return the report on the rows of a table of grades."""
    by_lab = defaultdict[str, list[dict[str, str]]](list)
    for row in rows:
        by_lab[row["lab"]].append(row)
    lines = []
    for lab, of_lab in by_lab.items():
        passed = sum(row["points"] == "100" for row in of_lab)
        points = median(int(row["points"]) for row in of_lab)
        lines.append(f"{lab}: {len(of_lab)} submissions, {passed} with 100 points, median {points:g}")
        if seconds := [float(row["seconds"]) for row in of_lab if row.get("seconds")]:
            lines[-1] += f", judged in {median(seconds):.1f} s (median)"
        wrong = Counter(f"{row['kind']}: {alike(row['first mistake'])}" for row in of_lab if row["points"] != "100")
        lines += [f"  {n:3}  {text}" for text, n in wrong.most_common(most)]
        if left := len(wrong) - most:
            lines += [f"       and {left} other mistakes"] * (left > 0)
    return "\n".join(lines)


def read(path: str) -> list[dict[str, str]]:
    """Return the rows of a table of grades. Raises UsageError."""
    cure = "give the grades.csv that lessons.grade has written"
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}; {cure}") from error
    are_numbers = (
        rows
        and set(rows[0]) >= _COLUMNS
        and all(
            (row["points"] or "").isdigit() and re.fullmatch(r"(\d+(\.\d+)?)?", row.get("seconds") or "")
            for row in rows
        )
    )
    if not are_numbers:
        raise UsageError(f"{Path(path).name}: has no grades; {cure}")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 0, 2 after bad usage, 128 + signal."""

    def work() -> None:
        settings = parse(sys.argv[1:] if arguments is None else arguments, Settings, __doc__ or "")
        if settings.most < 1:
            raise UsageError(f"--most {settings.most}: must be at least 1")
        print(report(read(settings.grades), settings.most))

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
