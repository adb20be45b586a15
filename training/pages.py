"""Write what the pages show of the classes: the strategies, the codecs, and the text of `--list`.

python -m training.pages
"""

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from records.known import CATALOGUE
from strategies import GROUPS, Strategy
from training.catalogue import CODEC_HEADER, catalogue, codec_rows, sent

PROJECT = Path(__file__).resolve().parent.parent
_CITATION = re.compile(r"\b(19|20)\d\d\b")


def summary(strategy: type[Strategy]) -> str:
    """Return the docstring of a strategy's module up to the paper that it cites.

    Formulas that follow the citation belong to it, and so does a paragraph that continues its sentence.
    """
    paragraphs = (inspect.getdoc(sys.modules[strategy.__module__]) or "").split("\n\n")
    end = next((i for i, text in enumerate(paragraphs, 1) if _CITATION.search(text)), len(paragraphs))
    while end < len(paragraphs) and (paragraphs[end][0] == " " or paragraphs[end][0].islower()):
        end += 1
    return "\n\n".join(paragraphs[:end])


def strategies_markdown() -> str:
    """Return a section for each group: the table of what its strategies send, and the summary of each."""
    lines = []
    for group, strategies in GROUPS.items():
        table = [(strategy.name, *sent(strategy)) for strategy in strategies]
        lines += [f"## {group}", table_markdown(("strategy", "messages", "bytes"), table)]
        for strategy in strategies:
            file = f"{strategy.__module__.replace('.', '/')}.py"
            lines += [f"### [`{strategy.name}`](../{file})", summary(strategy)]
    return "\n\n".join(lines)


def table_markdown(header: Sequence[str], table: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column holds names."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join([f"`{name}`", *cells]) + " |" for name, *cells in table)])


def written() -> dict[Path, str]:
    """Return every file that is made from the classes, with the text that it should have."""
    codecs = table_markdown(CODEC_HEADER, codec_rows())
    blocks = {"strategies.md": ("strategies", strategies_markdown()), "compression.md": ("codecs", codecs)}
    texts = {CATALOGUE: catalogue() + "\n"}
    for page, (name, block) in blocks.items():
        path = PROJECT / "docs" / page
        begin, end = f"<!-- {name}: made by python -m training.pages -->\n", f"<!-- end of {name} -->\n"
        before, rest = path.read_text(encoding="utf-8").split(begin)
        texts[path] = f"{before}{begin}\n{block}\n\n{end}{rest.split(end)[1]}"
    return texts


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
