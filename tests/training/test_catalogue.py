"""The table of strategies has what each class says; the pages show what is made from the classes."""

import re
import sys
from pathlib import Path

import pytest

from compression import CODECS
from strategies import GROUPS, STRATEGIES
from strategies.common.forms import describe
from training.catalogue import HEADER, catalogue, rows
from training.pages import strategies_markdown, summary, written

pytestmark = pytest.mark.of_every_strategy


def test_a_row_for_every_strategy_with_what_its_class_says() -> None:
    table = rows(STRATEGIES.values())
    for row, (name, kind) in zip(table, STRATEGIES.items(), strict=True):
        assert len(row) == len(HEADER)
        assert row[:2] == (name, describe(kind))
        assert row[2] == ("no" if kind.traits.asynchronous else "yes")
        assert row[3] == ("yes" if "server" in kind().roles(8) else "no")
        for traffic in kind().cost().by_role.values():
            assert traffic.messages in row[4]
            assert traffic.bytes in row[5]


def test_the_page_has_a_section_with_row_and_docstring_for_every_strategy() -> None:
    page = strategies_markdown()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == list(GROUPS)
    assert re.findall(r"^### \[`(\w+)`\]", page, re.MULTILINE) == list(STRATEGIES)
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(STRATEGIES)
    assert page.count(summary(STRATEGIES["gossip"])) == 1


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
