"""Write a page that steps through a finished run: `python -m records.page RESULTS_DIR/RUN_NAME [SECOND_RUN]`.

RUN_NAME.page.html is one file that any browser opens, without a server and without a network.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from records.finished import BadRun, Parser, load, run_command, writing
from records.page import make_page
from records.unfinished import SUFFIXES


def _write(given: argparse.Namespace) -> str:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; return the exit status."""
    parser = Parser(prog="python -m records.page", description="Write a page that steps through a finished run.")
    parser.add_argument("run", metavar="RUN", help="RESULTS_DIR/RUN_NAME, or one of the run's files")
    parser.add_argument("second", metavar="SECOND_RUN", nargs="?", help="another run, shown below it on the same clock")
    parser.add_argument("--out", metavar="FILE", help="where to write the page (default: RUN.page.html)")
    parser.add_argument("--step", type=int, help="first step on the page, from 1 (default: the page has all steps)")
    parser.add_argument("--steps", type=int, help="how many steps on the page (default: all; with --step, 1)")
    return run_command(parser, _write, arguments)


if __name__ == "__main__":
    sys.exit(main())
