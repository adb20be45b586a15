"""Write a page that steps through a finished run: `python -m records.page RESULTS_DIR/RUN_NAME [SECOND_RUN]`.

RUN_NAME.page.html is one file that any browser opens, without a server and without a network.
"""

import os
import sys
from argparse import Namespace

from records.finished import RUN, BadRun, Settings, command, load, writing
from records.page import make_page
from records.unfinished import SUFFIXES


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

if __name__ == "__main__":
    sys.exit(main())
