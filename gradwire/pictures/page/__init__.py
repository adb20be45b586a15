"""A page that steps through a finished run, in one file that needs no server and no network.

`python -m gradwire page RESULTS_DIR/RUN_NAME [SECOND_RUN]` writes it to RUN_NAME.page.html; in a notebook
`show("results/RUN_NAME")` displays it.
"""

import base64
import gzip
import html
import io
import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from gradwire.core.records.atomic import AnyPath
from gradwire.core.records.events import CODE, OP, OPS, PHASES
from gradwire.core.records.machine import unchanged
from gradwire.core.records.unfinished import SUFFIXES
from gradwire.diagnosis.memory_use import SUFFIX, draw, load_changes
from gradwire.pictures.finished import RUN, BadRun, Recorded, Settings, command, load, writing
from gradwire.pictures.messages import ring_before, with_messages
from gradwire.pictures.timeline import COLOURS, window

MAX_EVENTS = 200_000  # of a run: more would make the page slow
MAX_BYTES = 5_000_000
_SCRIPTS = ("run", "words", "lost", "scene", "lanes", "strips", "chunks", "code", "messages", "controls")
"""Parts of one script, in their order."""
TYPES = {
    "t0": "<f8", "t1": "<f8", "bytes": "<f8",
    "message": "<i4", "version": "<i4", "version_read": "<i4", "version_applied": "<i4", "step": "<i4", "peer": "<i4",
    "epoch": "<i4", "chunk": "<i4", "line": "<u2", "tag": "<u2", "rank": "<u2", "phase": "<u1", "op": "<u1",
}  # fmt: skip
"""The columns of a page, the widest first, so that each begins where its type may lie."""


@dataclass(frozen=True)
class Page:
    """A page as text; a notebook shows it in its cell."""

    text: str = field(repr=False)  # which a notebook would keep a second time
    height: int

    def _repr_html_(self) -> str:
        source = html.escape(self.text, quote=True)
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe title="Page that steps through a run" srcdoc="{source}" style="{style}"></iframe>'


def show(run: AnyPath, second: AnyPath | None = None, height: int = 780) -> Page:
    """Return the page of one finished run (RESULTS_DIR/RUN_NAME) or two, for a cell of `height` pixels.

    Raises BadRun.
    """
    return Page(make_page([load(str(path)) for path in (run, second) if path is not None]), height)


def make_page(runs: Sequence[Recorded], steps: tuple[int, int] | None = None, note: str = "") -> str:
    """Return the text of the page of one run or two, with all their events or those of `steps`: the first, how many.

    Steps count from 1. `note` is shown above them, such as what to look at. Two runs are on one clock, on which both
    begin their first epoch at the same time. Raises BadRun, also for a page of more than MAX_BYTES.
    """
    of_runs = [_facts(run, runs[0].begins - run.begins, steps) for run in runs]
    facts = {"runs": of_runs, "view": _first_view(runs, steps), "phases": PHASES, "ops": OPS}
    colours = " ".join(f"--{phase}: {colour};" for phase, colour in COLOURS.items())
    parts = {
        "title": html.escape(" and ".join(Path(run.path).name for run in runs)),
        "note": html.escape(note),
        "style": f":root {{{colours}}}\n{_part('page.css')}",
        "library": f"/*\n{_part('lib/d3.LICENSE')}*/\n{_part('lib/d3.min.js')}",
        "memory": "".join(picture_of_memory(run) for run in runs),
        "data": json.dumps(facts, allow_nan=False).replace("<", "\\u003c"),  # nothing in it ends the script
        "script": "\n".join(_part(f"{name}.js") for name in _SCRIPTS),
    }
    text = _filled("page.html", parts)
    if (size := len(text.encode())) > MAX_BYTES:
        what, room = " and ".join(run.path for run in runs), 0.9 * MAX_BYTES / size
        says = f"{what}: a page of {size / 1e6:.1f} MB, and {MAX_BYTES / 1e6:g} is the most"
        raise _too_large(says, runs, steps, [int(room * of_run["n"]) for of_run in of_runs])
    return text


def pack(page: str, title: str) -> str:
    """Return a page which the browser unpacks: the same in about a third of the bytes."""
    packed = base64.b64encode(gzip.compress(page.encode(), 9, mtime=0)).decode("ascii")
    return _filled("packed.html", {"title": html.escape(title), "packed": packed})


def picture_of_memory(run: Recorded) -> str:
    """Return HTML: the memory of the rank that used most, in one step; nothing where it was not counted."""
    use = {int(rank): of["peak"] for rank, of in run.metadata.get("memory", {}).items()}
    path = Path(f"{run.path}{SUFFIX}")
    if not use or not path.exists():
        return ""
    changes = load_changes(path)
    rank = max(changes["rank"].unique(), key=use.__getitem__)
    figure, buffer = Figure((9, 3.2), dpi=100, layout="constrained"), io.BytesIO()
    axes = figure.subplots()
    draw(changes[changes["rank"] == rank], axes)
    axes.set_ylabel("MB")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False, reverse=True)
    figure.savefig(buffer)
    text = f"Memory of rank {rank} in the step in which it used most, by kind: its changes in their order"
    image = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return f'<details><summary>{text}</summary><img class="memory" alt="{text}" src="{image}"></details>'


def _too_large(says: str, runs: Sequence[Recorded], steps: tuple[int, int] | None, most: Sequence[int]) -> BadRun:
    """Make the error; its cure is the number of steps, at least 1, with at most `most` events of each run."""
    first = steps[0] if steps else 1 + max(int(run.steps["step"].min()) for run in runs)
    n = []
    for run, limit in zip(runs, most, strict=True):
        later = run.steps[run.steps["step"] >= first - 1]
        body = run.events[run.events["phase"].isin(PHASES)]
        ended_before = (body["t1"] < later["t0"].min()).sum()
        ends = later.groupby("step")["t1"].max().cummax()  # of the last worker; another may be steps ahead
        n.append(int((np.searchsorted(np.sort(body["t0"]), ends, "right") - ended_before <= limit).sum()))
    return BadRun(f"{says}; ask for fewer steps, such as --step {first} --steps {max(1, min(n))}")


def _facts(run: Recorded, shift: float, steps: tuple[int, int] | None) -> dict[str, Any]:
    """Return all that the page knows of a run, its times later by `shift` seconds. Raises BadRun."""
    spans = with_messages(run.events, run.roles, run.died)
    begins = spans.groupby("rank")["t0"].min()
    start, stop = (0.0, float(spans["t1"].max())) if steps is None else window(run.events, run.roles, *steps)
    before = ring_before(spans, start, len(run.roles))
    spans = spans[(spans["t1"] >= start) & (spans["t0"] <= stop)].reset_index(drop=True)
    if len(spans) > MAX_EVENTS:
        says = f"{run.path}: {len(spans):,} events, and a page holds {MAX_EVENTS:,}"
        raise _too_large(says, [run], steps, [MAX_EVENTS])
    texts, missing = _sources(spans["line"], run.metadata.get("sources"))
    return {
        "name": Path(run.path).name,
        "about": run.about,
        "roles": run.roles,
        "shift": shift,
        "lost": {rank: begins.get(rank) for rank in run.died},
        "ring_before": before,
        "sources": texts,
        "missing": missing,
        **_columns(spans),
    }


def _columns(spans: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of TYPES, compressed as text, with the names that the numbers of tags and lines stand for."""
    tag, tags = pd.factorize(spans["tag"])
    line, lines = pd.factorize(spans["line"])
    message, _ = pd.factorize(spans["message"].where(spans["message"] >= 0))  # -1 stays -1
    phase, op = spans["phase"].map(CODE), spans["op"].map(OP)
    numbers = spans.assign(tag=tag, line=line, message=message, phase=phase, op=op)
    raw = b"".join(numbers[name].to_numpy(kind).tobytes() for name, kind in TYPES.items())
    packed = base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode("ascii")
    return {"n": len(spans), "types": TYPES, "tags": list(tags), "lines": list(lines), "packed": packed}


def _sources(lines: pd.Series, known: Any) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the files that occur in `lines`, each as HTML line by line; and of those that cannot be shown, why."""
    digests = known if isinstance(known, dict) else {}
    texts, missing = {}, {}
    for name in sorted({line.rpartition(":")[0] for line in lines.unique() if line}):
        text = unchanged(name, digests.get(name))
        if text:
            coloured = highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
            texts[name] = coloured.rstrip("\n").split("\n")
        else:
            missing[name] = f"{name} has changed since the run, or is not here: its code is not shown."
    return texts, missing


def _first_view(runs: Sequence[Recorded], steps: tuple[int, int] | None) -> list[float]:
    """Return from when to when, on the first run's clock, the first two steps on the page last: of the slowest run."""
    starts, lengths = [], []
    for run in runs:
        first, n = steps or (1 + int(run.steps["step"].min()), 2)
        inside = run.steps[run.steps["step"].between(first - 1, first + min(n, 2) - 2)]
        starts.append(float(inside["t0"].min()) + runs[0].begins - run.begins)
        lengths.append(float(inside["t1"].max() - inside["t0"].min()))
    return [min(starts), min(starts) + max(lengths)]


def _filled(name: str, parts: Mapping[str, str]) -> str:
    text = _part(name)
    for place, part in parts.items():
        before, mark, after = text.partition(f"<!--{place}-->")
        assert mark, place
        text = before + part + after
    return text


@cache
def _part(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _write(given: Namespace) -> str:
    runs = [load(path) for path in (given.run, given.second) if path is not None]
    is_part = given.step is not None or given.steps is not None
    steps = (1 if given.step is None else given.step, 1 if given.steps is None else given.steps) if is_part else None
    path = given.out or f"{runs[0].path}.page.html"
    if os.path.realpath(path).endswith(SUFFIXES):
        raise BadRun(f"--out {path}: the name of a run's records, which a page would replace; end it with .html")
    text = make_page(runs, steps)
    with writing([path], "give another --out") as (temporary,):
        temporary.write_text(text, encoding="utf-8")
    return f"page           {path} ({len(text) / 1e6:.1f} MB; open it in a browser)"


_MORE: Settings = {
    "second": {"metavar": "SECOND_RUN", "nargs": "?", "help": "another run, shown below it on the same clock"},
    "--out": {"metavar": "FILE", "help": "where to write the page (default: RUN.page.html)"},
    "--step": {"type": int, "help": "first step on the page, from 1 (default: the page has all steps)"},
    "--steps": {"type": int, "help": "how many steps on the page (default: all; with --step, 1)"},
}
main = command("page", "Write a page that steps through a finished run.", RUN | _MORE, _write)
