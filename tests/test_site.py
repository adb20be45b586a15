"""The pages as a site, the recorded runs and the citation."""

import base64
import gzip
import json
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gradwire.pictures.page import TYPES
from tests.pictures.test_page import facts, unpacked
from tests.ranks import LIMIT
from tests.runs import ROOT
from tests.selection import by_default
from tests.test_readme import BESIDE, EVERY, PROJECT

PAGES, ENTRIES = ROOT / "media" / "pages", ROOT / "results" / "scoreboard"
MADE = runpy.run_path(str(ROOT / "media" / "draw_pages.py"))
RUNS = list(MADE["RUNS"])


# Recorded runs


def test_the_command_makes_the_pages_that_are_here_and_the_readme_shows_them() -> None:
    assert len(RUNS) == 6
    assert {path.name for path in PAGES.iterdir()} == {
        "README.md", *(f"{name}.{kind}" for name in RUNS for kind in ("html", "png"))
    }  # fmt: skip
    assert (PAGES / "README.md").read_text(encoding="utf-8") == MADE["listed"]()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\(media/pages/(\w+)\.png\)\]\(media/pages/\1\.html\)", readme) == RUNS


@pytest.mark.parametrize("name", by_default(RUNS[:2], RUNS))
def test_a_page_is_small_says_what_to_look_at_and_has_the_same_events_when_it_is_made_again(name: str) -> None:
    packed, again = (PAGES / f"{name}.html").read_bytes(), MADE["make"](name)
    assert len(packed) < 200_000
    found = re.search(rb'atob\("(.+)"\)', packed)
    assert found
    kept = gzip.decompress(base64.b64decode(found[1])).decode()
    notes = [re.findall(r'<p id="note">(.+)</p>', text) for text in (kept, again)]
    assert notes[0] == notes[1] != []
    (before,), (after,) = facts(kept)["runs"], facts(again)["runs"]
    columns = [name for name in TYPES if name != "line"]  # the sources may change
    assert unpacked(before)[columns].equals(unpacked(after)[columns])
    assert [before[key] for key in ("tags", "roles", "about")] == [after[key] for key in ("tags", "roles", "about")]


# The site

NEEDS_MKDOCS = pytest.mark.skipif(find_spec("material") is None, reason="needs mkdocs: pip install -e '.[dev]'")


def build(site: Path, root: Path = ROOT) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)], cwd=root, capture_output=True,
        text=True, timeout=LIMIT, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@NEEDS_MKDOCS
def test_the_site_has_every_page_notebook_and_recorded_run_and_leads_nowhere_in_vain(tmp_path: Path) -> None:
    code, said = build(tmp_path)
    assert code == 0, said
    assert "WARNING" not in said
    for run in (*PAGES.glob("*.html"), *ENTRIES.glob("*.html")):
        assert (tmp_path / run.relative_to(ROOT)).read_bytes() == run.read_bytes()
    notebooks = [*ROOT.glob("lessons/*.ipynb"), *ROOT.glob("experiments/*.ipynb")]
    pages = [path.relative_to(ROOT) for path in (*EVERY, *BESIDE, PAGES / "README.md", *notebooks)]
    places = {str(page.parent / "index.html" if page.stem == "README" else page.with_suffix(".html")) for page in pages}
    texts = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")
             if path.name != "404.html" and not (ROOT / path.relative_to(tmp_path)).exists()}  # fmt: skip
    assert {str(path.relative_to(tmp_path)) for path in texts} == places
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert {entry["location"].partition("#")[0] for entry in index} >= places, "the search finds them"
    outside = f"{PROJECT['project']['urls']['Repository']}/(?:blob|tree)/HEAD/(.+)"
    into, among = 0, set()
    for path, text in texts.items():
        for link in re.findall(r'<[^>]* (?:href|src)="?([^" >]+)', text):
            scheme, host, to, _, anchor = urlsplit(link)
            if scheme or host:
                inside = re.fullmatch(outside, link)
                into += inside is not None
                assert inside is None or (ROOT / inside[1]).exists(), link
                continue
            target = (path.parent / unquote(to)).resolve() if to else path
            assert target.is_file(), (path, link)
            among.add((path.name, target.name))
            assert not anchor or re.search(f'id="?{re.escape(anchor)}[" >]', texts.get(target, "")), (path, link)
    there = {("scoreboard.html", "demo.html"), ("compression.html", "8_compression.html"),
             ("8_compression.html", "8_compression.1.png")}  # fmt: skip
    assert there <= among, "entries, notebooks and their pictures are on the site"
    assert into > 30, "code is in the repository"


# Bugs and the citation


def test_each_bug_names_a_test_that_is_there() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").split("## Bugs")[1]
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(set(named)) == text.count("\n- **") == 10
    for path, test in named:
        assert f"\ndef {test}(" in (ROOT / path).read_text(encoding="utf-8"), test
