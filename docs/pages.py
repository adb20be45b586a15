"""Write the parts of the pages on strategies and codecs, from their classes.

Also the stubs by which type checkers know the names that packages load on demand, and the first lines of the labs'
notebooks, which link to a hosted copy. python -m docs.pages writes them.
"""

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import strategies
from gradwire import compression
from gradwire.catalogue import CODEC_HEADER, catalogue, codec_rows, sent
from gradwire.early_arguments import CATALOGUE
from gradwire.lazy import LazyTable
from gradwire.scoreboard.table import table
from strategies import GROUPS, Strategy

PROJECT = Path(__file__).resolve().parent.parent
_CITATION = re.compile(r"\b(19|20)\d\d\b")
_TABLES = """
FAMILIES: dict[str, str]
GROUPS: dict[str, tuple[type[Strategy], ...]]
HOMES: dict[str, str]
INSTEAD: dict[tuple[str, str], str]
READ_FIRST: tuple[str, ...]
STRATEGIES: LazyTable[type[Strategy]]
"""
_CODECS = """
CODECS: LazyTable[type[Codec]]
HOMES: dict[str, str]
"""
_HOSTED = """import os
import subprocess
import sys
from importlib.util import find_spec

sys.path.insert(0, "..")
if find_spec("lessons") is None:  # in a hosted notebook, which has nothing but this page
    subprocess.run("git clone -q --depth 1 {} course", shell=True)
    subprocess.run(f"{{sys.executable}} -m pip install -q -r course/requirements.txt", shell=True, check=True)
    sys.path.insert(0, os.path.abspath("course"))"""


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
    for group, kinds in GROUPS.items():
        table = [(strategy.name, *sent(strategy, compact)) for strategy in kinds]
        lines += [f"## {group}", table_markdown(("strategy", "messages", "bytes"), table)]
        for strategy in kinds:
            file = f"{strategy.__module__.replace('.', '/')}.py"
            lines += [f"### [`{strategy.name}`](../{file})", summary(strategy)]
    return "\n\n".join(lines)


def strategies_list() -> str:
    """Return a line for each family, with the names of its strategies."""
    names = {group: ", ".join(f"`{kind.name}`" for kind in kinds) for group, kinds in GROUPS.items()}
    return "\n".join(f"- {group}: {of_group}" for group, of_group in names.items())


def stub(homes: Mapping[str, str], tables: str) -> str:
    """Return what a type checker reads of a package that loads these names, of these modules, and has these tables."""
    lines = [f"from {module} import {name} as {name}" for name, module in homes.items()]
    lines += [f"from {LazyTable.__module__} import {LazyTable.__name__}"]

    def place(line: str) -> tuple[str, bool, bool, str]:
        _, module, _, name, *_ = line.split()
        return module, not name.isupper(), name.islower(), name

    return "\n".join(['"""Made by python -m docs.pages."""\n', *sorted(lines, key=place)]) + f"\n{tables}"


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
    """Return every file with generated parts, with the text that it should have."""
    codecs = table_markdown(CODEC_HEADER, codec_rows(compact))
    board = table(PROJECT / "results" / "scoreboard", PROJECT / "docs")
    blocks = {
        "README.md": ("strategies", strategies_list()),
        "docs/strategies.md": ("strategies", strategies_markdown()),
        "docs/compression.md": ("codecs", codecs),
        "docs/scoreboard.md": ("scoreboard", board),
    }
    texts = {
        CATALOGUE: catalogue() + "\n",
        PROJECT / "strategies" / "__init__.pyi": stub(strategies.HOMES, _TABLES),
        PROJECT / "gradwire" / "compression" / "__init__.pyi": stub(compression.HOMES, _CODECS),
    }
    for page, (name, block) in blocks.items():
        path = PROJECT / page
        begin, end = f"<!-- {name}: made by python -m docs.pages -->\n", f"<!-- end of {name} -->\n"
        before, rest = path.read_text(encoding="utf-8").split(begin)
        texts[path] = f"{before}{begin}\n{block}\n\n{end}{rest.split(end)[1]}"
    return texts | {path: with_link(path) for path in sorted((PROJECT / "lessons").glob("*.ipynb"))}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
