"""What is shown of the strategies and codecs, made from their classes: the text of `--list`, and parts of the pages.

Also the first lines of the labs' notebooks, which open them in a hosted one. python -m training.pages writes them.
"""

import inspect
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compression import CODECS, KINDS
from records.known import CATALOGUE
from records.scoreboard import table
from strategies import GROUPS, Strategy
from strategies.common.forms import describe

PROJECT = Path(__file__).resolve().parent.parent
_CITATION = re.compile(r"\b(19|20)\d\d\b")
NOTE = (
    "N ranks; p: the largest power of two up to N; L: log2 p; P: bytes of the parameters, n of w bytes each; G: bytes "
    "of a gradient as it is sent (P, or those of its code, see below). What a rank sends, on average over the ranks "
    "of its role, while every worker takes one step. One by one: what of it cannot be at the same time; a step takes "
    "that long, and what is computed."
)
_HOSTED = """import os
import subprocess
import sys
from importlib.util import find_spec

sys.path.insert(0, "..")
if find_spec("lessons") is None:  # in a hosted notebook, which has nothing but this page
    subprocess.run("git clone -q --depth 1 {} course", shell=True)
    subprocess.run(f"{{sys.executable}} -m pip install -q -r course/requirements.txt", shell=True, check=True)
    sys.path.insert(0, os.path.abspath("course"))"""
CODEC_HEADER = ("codec", "what it does", "kind", "bytes of values", "of indices", "of headers")
CODEC_NOTE = (
    "n: elements of a tensor, w: bytes of one, rows and columns as a matrix, i: bytes of an index (4). "
    + "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    + "."
)


def sent(strategy: type[Strategy], show: Callable[[str], str] = str) -> tuple[str, str]:
    """Return the formulas of the messages and of the bytes that each role sends in a step, as `show` shows them."""
    by_role = strategy().cost().by_role
    roles = {role: f"{role} " if len(by_role) > 1 else "" for role in by_role}
    messages = "; ".join(f"{roles[role]}{show(traffic.messages)}" for role, traffic in by_role.items())
    return messages, "; ".join(f"{roles[role]}{show(traffic.bytes)}" for role, traffic in by_role.items())


def codec_rows(show: Callable[[str], str] = str) -> list[tuple[str, ...]]:
    """Return a row for each codec, with the columns of CODEC_HEADER, formulas as `show` shows them."""
    return [
        (name, describe(codec), codec.kind, *(show(getattr(codec, what)) for what in ("values", "indices", "headers")))
        for name, codec in CODECS.items()
    ]


def catalogue() -> str:
    """Return both tables as text for a terminal: the strategies of each group, and one codec a block of lines."""
    lines = []
    for group, strategies in GROUPS.items():
        lines += [f"{group}:", ""]
        for strategy in strategies:
            lines += _block(strategy)
        lines += [""]
    lines += [*textwrap.wrap(NOTE, 100), ""]
    for name, description, kind, values, indices, headers in codec_rows():
        sizes = {"values": values, "indices": indices, "headers": headers}
        text = "; ".join(f"{what} {formula}" for what, formula in sizes.items() if formula != "0")
        lines += [f"--codec {name}  ({kind})", f"    {description}", f"    bytes  {text}"]
    return "\n".join([*lines, "", *textwrap.wrap(CODEC_NOTE, 100)])


def _block(strategy: type[Strategy]) -> list[str]:
    """Return the lines for one strategy."""
    cost, (messages, nbytes) = strategy().cost(), sent(strategy)
    paces = "not synchronous" if strategy.traits.asynchronous else "synchronous"
    lines = [f"{strategy.name}  ({paces}, {'a' if cost.server else 'no'} server)", f"    {describe(strategy)}"]
    lines += [f"    messages a step  {messages}", f"    bytes a step     {nbytes}"]
    for path, how in ((cost.path, ""), (cost.in_order, ", where cards pass messages in order")):
        if path:
            when = ", while it computes" if path.while_computing else ""
            line = f"    one by one       {path.messages} messages, {path.bytes} bytes{when}{how}"
            lines += textwrap.wrap(line, 120, subsequent_indent=" " * 21)
    return lines


def summary(strategy: type[Strategy]) -> str:
    """Return the docstring of a strategy's module up to the paper that it cites.

    Formulas that follow the citation belong to it, and so does a paragraph that continues its sentence.
    """
    paragraphs = (inspect.getdoc(sys.modules[strategy.__module__]) or "").split("\n\n")
    end = next((i for i, text in enumerate(paragraphs, 1) if _CITATION.search(text)), len(paragraphs))
    while end < len(paragraphs) and (paragraphs[end][0] == " " or paragraphs[end][0].islower()):
        end += 1
    return "\n\n".join(paragraphs[:end])


def compact(formula: str) -> str:
    """Return a formula without spaces, so that a column of a table is narrow; products get a dot."""
    return re.sub(r" ([-+/%]) ", r"\1", formula).replace(", ", ",").replace(" ", "·")


def strategies_markdown() -> str:
    """Return a section for each group: the table of what its strategies send, and the summary of each."""
    lines = []
    for group, strategies in GROUPS.items():
        table = [(strategy.name, *sent(strategy, compact)) for strategy in strategies]
        lines += [f"## {group}", table_markdown(("strategy", "messages", "bytes"), table)]
        for strategy in strategies:
            file = f"{strategy.__module__.replace('.', '/')}.py"
            lines += [f"### [`{strategy.name}`](../{file})", summary(strategy)]
    return "\n\n".join(lines)


def table_markdown(header: Sequence[str], table: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column holds names."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join([f"`{name}`", *cells]) + " |" for name, *cells in table)])


def with_link(path: Path) -> str:
    """Return a notebook that begins with a link to a hosted one, and then the cell that fetches the course there."""
    urls = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    hosted = urls["Repository"].replace("//github.com/", "//colab.research.google.com/github/")
    link = f"[Open in Colab]({hosted}/blob/main/{path.relative_to(PROJECT)})\n"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    first, *cells = notebook["cells"]
    begin = 2 if "](https://colab." in first["source"][0] else 0
    first["source"] = [link, "\n", *first["source"][begin:]]
    fetch: dict[str, Any] = {"cell_type": "code", "execution_count": None, "id": "hosted", "metadata": {}}
    fetch |= {"outputs": [], "source": _HOSTED.format(urls["Repository"]).splitlines(keepends=True)}
    notebook["cells"] = [first, fetch, *(cell for cell in cells if cell["id"] != "hosted")]
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def written() -> dict[Path, str]:
    """Return every file of which something is made, with the text that it should have."""
    codecs = table_markdown(CODEC_HEADER, codec_rows(compact))
    board = table(PROJECT / "results" / "scoreboard", PROJECT / "docs")
    blocks = {
        "strategies.md": ("strategies", strategies_markdown()),
        "compression.md": ("codecs", codecs),
        "scoreboard.md": ("scoreboard", board),
    }
    texts = {CATALOGUE: catalogue() + "\n"}
    for page, (name, block) in blocks.items():
        path = PROJECT / "docs" / page
        begin, end = f"<!-- {name}: made by python -m training.pages -->\n", f"<!-- end of {name} -->\n"
        before, rest = path.read_text(encoding="utf-8").split(begin)
        texts[path] = f"{before}{begin}\n{block}\n\n{end}{rest.split(end)[1]}"
    return texts | {path: with_link(path) for path in sorted((PROJECT / "lessons").glob("*.ipynb"))}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
