"""The table of strategies has what each class says; the pages show what is made from the classes."""

import re
import sys
from pathlib import Path

import pytest

from compression import CODECS
from strategies import STRATEGIES
from training.catalogue import catalogue
from training.pages import summary, written

pytestmark = pytest.mark.of_every_strategy


def test_a_summary_ends_with_the_paper_and_its_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = STRATEGIES["single"]
    monkeypatch.setattr(sys.modules[kind.__module__], "__doc__", "A.\n\n(B, 1951.) Then\n\n    x\n\nand y.\n\nNo more.")
    assert summary(kind) == "A.\n\n(B, 1951.) Then\n\n    x\n\nand y."
    monkeypatch.setattr(sys.modules[kind.__module__], "__doc__", "A.\n\nNo paper.")
    assert summary(kind) == "A.\n\nNo paper."


def test_the_table_for_a_terminal_fits_it() -> None:
    lines = catalogue().splitlines()
    assert [line.split()[0] for line in lines if re.match(r"\w+  \(", line)] == list(STRATEGIES)
    assert [line.split()[1] for line in lines if re.match(r"--codec \w+  \(", line)] == list(CODECS)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("path", written(), ids=lambda path: path.name)
def test_what_is_made_from_the_classes_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == written()[path], "python -m training.pages"
