"""The table of strategies has what each class says; the pages show what is made from the classes."""

import re
from pathlib import Path

import pytest

from docs.pages import catalogue, written
from gradwire.compression import CODECS
from strategies import STRATEGIES

pytestmark = pytest.mark.of_every_strategy
WRITTEN = written()


def test_the_table_for_a_terminal_fits_it() -> None:
    lines = catalogue().splitlines()
    assert [line.split()[0] for line in lines if re.match(r"\w+  \(", line)] == list(STRATEGIES)
    assert [line.split()[1] for line in lines if re.match(r"--codec \w+  \(", line)] == list(CODECS)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_what_is_made_from_the_classes_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == WRITTEN[path], "python -m docs.pages"
