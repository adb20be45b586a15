"""The table of strategies says of each what its class says, and is what the README shows."""

import re
from pathlib import Path

import pytest

from compression import CODECS
from strategies import GROUPS, STRATEGIES
from strategies.common.forms import describe
from training.catalogue import HEADER, blocks, catalogue, markdown

pytestmark = pytest.mark.of_every_strategy


def test_a_row_for_every_strategy_with_all_that_is_said_of_it() -> None:
    lines = markdown().splitlines()
    assert lines.count("| " + " | ".join(HEADER) + " |") == lines.count("|---" * len(HEADER) + "|") == len(GROUPS)
    assert [line.strip("*") for line in lines if line.startswith("**")] == list(GROUPS)
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(STRATEGIES)
    for row, (name, kind) in zip(rows, STRATEGIES.items(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == len(HEADER)
        assert cells[:2] == [f"`{name}`", describe(kind)]
        assert cells[2] == ("no" if kind.traits.asynchronous else "yes")
        assert cells[3] == ("yes" if "server" in kind().roles(8) else "no")
        for traffic in kind().cost().by_role.values():
            assert traffic.messages in cells[4]
            assert traffic.bytes in cells[5]


def test_the_table_for_a_terminal_fits_it() -> None:
    lines = catalogue().splitlines()
    assert [line.split()[0] for line in lines if re.match(r"\w+  \(", line)] == list(STRATEGIES)
    assert [line.split()[1] for line in lines if re.match(r"--codec \w+  \(", line)] == list(CODECS)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("path", blocks(), ids=lambda path: path.name)
def test_what_is_made_from_the_classes_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == blocks()[path], "python -m training.catalogue --write"
