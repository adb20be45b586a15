"""The table of strategies says of each what its class says, and is what the README shows."""

import re

from compression import CODECS
from strategies import GROUPS, STRATEGIES
from tests.runs import ROOT
from training.catalogue import HEADER, catalogue, codecs_markdown, markdown

BEGIN, END = "<!-- strategies: made by python -m training.catalogue -->", "<!-- end of strategies -->"


def test_a_row_for_every_strategy_with_all_that_is_said_of_it() -> None:
    lines = markdown().splitlines()
    assert lines.count("| " + " | ".join(HEADER) + " |") == lines.count("|---" * len(HEADER) + "|") == len(GROUPS)
    assert [line.strip("*") for line in lines if line.startswith("**")] == list(GROUPS)
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) == len(STRATEGIES)
    for row, (name, kind) in zip(rows, STRATEGIES.items(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == len(HEADER)
        assert cells[:2] == [f"`{name}`", kind.describe()]
        assert cells[2] == ("no" if kind.asynchronous else "yes")
        assert cells[3] == ("yes" if "server" in kind().roles(8) else "no")
        for traffic in kind.traffic.values():
            assert traffic.messages in cells[4]
            assert traffic.bytes in cells[5]


def test_the_table_for_a_terminal_fits_it() -> None:
    lines = catalogue().splitlines()
    assert [line.split()[0] for line in lines if re.match(r"\w+  \(", line)] == list(STRATEGIES)
    assert [line.split()[1] for line in lines if re.match(r"--codec \w+  \(", line)] == list(CODECS)
    assert max(map(len, lines)) <= 120


def test_the_readme_shows_the_table() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.split(BEGIN)[1].split(END)[0].strip()
    assert shown == markdown(), "python -m training.catalogue prints it"


def test_the_docs_show_the_table_of_codecs() -> None:
    text = (ROOT / "docs" / "compression.md").read_text()
    shown = text.split("<!-- codecs: made by python -m training.catalogue -->")[1].split("<!-- end of codecs -->")[0]
    assert shown.strip() == codecs_markdown(), "python -m training.catalogue prints it"
    for name, codec in CODECS.items():
        assert f"| `{name}` | {codec.describe()} |" in shown
