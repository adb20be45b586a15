"""What makes README.md, docs/, the pages of other rooms, notebooks and recorded runs one site: hooks of mkdocs.yml.

Every page lies where it lies in the repository, so links among pages are the same on both, and a notebook becomes the
page NAME.md beside it. A link to any other file leads into the repository, at `[project.urls] Repository` of
pyproject.toml.
"""

import base64
import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("*.md", "docs/*.md", "lessons/*.md", "benchmarks/*.md", "experiments/*.md", "media/*.*", "media/pages/*",
         "results/scoreboard/*.html")  # fmt: skip
NOTEBOOKS = {"lessons": "Teach", "experiments": "Measured"}  # the section of mkdocs.yml that lists those of a folder


def notebooks(folder: str) -> list[Path]:
    """Return the notebooks of a folder, by their numbers."""
    return sorted((ROOT / folder).glob("*.ipynb"), key=lambda path: int(path.name.partition("_")[0]))


def on_config(config: MkDocsConfig) -> None:
    """Take the repository's address from its one setting, and list the notebooks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": project["urls"]["Repository"]}]
    sections = {name: pages for entry in config.nav or [] if isinstance(entry, dict) for name, pages in entry.items()}
    for folder, section in NOTEBOOKS.items():
        sections[section].extend(f"{folder}/{path.stem}.md" for path in notebooks(folder))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site: the theme's, SHOWN ones of the repository, and converted notebooks."""
    kept = [file for file in files if file.generated_by or file.src_dir != config.docs_dir]
    shown = [path for pattern in SHOWN for path in sorted(ROOT.glob(pattern)) if path.suffix != ".py"]
    made = [
        File.generated(config, f"{folder}/{name}", content=content)
        for folder in NOTEBOOKS
        for path in notebooks(folder)
        for name, content in parts_of(path)
    ]
    there = [File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in shown]
    return Files([*kept, *there, *made])


def parts_of(notebook: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yield the name and content of each picture that a notebook has kept, then of the page, in Markdown."""
    page, pictures = "", 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        page += f"{source}\n\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n\n"
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                name = f"{notebook.stem}.{pictures}.png"
                yield name, base64.b64decode(data["image/png"])
                page += f"![Picture {pictures} of this notebook]({name})\n\n"
            else:
                text = "".join(output["text"] if output["output_type"] == "stream" else data["text/plain"])
                page += f"```text\n{text.rstrip()}\n```\n\n"
    yield f"{notebook.stem}.md", page


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Point links to files that are not on the site into the repository; mkdocs warns of links that lead nowhere."""

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if path.endswith(".ipynb") and files.get_file_from_path(f"{path[:-6]}.md"):
            return f"]({link[1][:-6]}.md)"
        if files.get_file_from_path(path) or not (ROOT / path).exists():
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config.extra['social'][0]['link']}/{kind}/HEAD/{path})"

    return re.sub(r"\]\(([^)#:]+)\)", lead, markdown)
