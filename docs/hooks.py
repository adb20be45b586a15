"""What makes README.md, docs/ and the pages of other rooms one site: hooks of mkdocs.yml.

Every page lies where it lies in the repository, so links among pages are the same on both; a link to any other file of
the repository leads there, at `[project.urls] Repository` of pyproject.toml.
"""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("*.md", "docs/*.md", "lessons/*.md", "benchmarks/*.md", "experiments/*.md", "media/*.*", "media/pages/*",
         "results/scoreboard/*.html")  # fmt: skip


def on_config(config: MkDocsConfig) -> None:
    """Take the repository's address from its one setting."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": project["urls"]["Repository"]}]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site: those of the theme, and of the repository what is SHOWN."""
    kept = [file for file in files if file.generated_by or file.src_dir != config.docs_dir]
    shown = [path for pattern in SHOWN for path in sorted(ROOT.glob(pattern)) if path.suffix != ".py"]
    return Files(
        [*kept, *(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in shown)]
    )


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links to what is not on the site lead into the repository; what is nowhere remains, for mkdocs to warn of."""

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[1]))
        if files.get_file_from_path(path) or not (ROOT / path).exists():
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config.extra['social'][0]['link']}/{kind}/HEAD/{path})"

    return re.sub(r"\]\(([^)#:]+)\)", lead, markdown)
