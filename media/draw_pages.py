"""Make the six recorded runs to step through, their pictures, and the list of them: media/pages/.

python media/draw_pages.py

The runs are in virtual time, and one in an order that `explore.py` finds: a page has the same events on every machine.
Pictures need Chromium and its driver (apt-get install chromium chromium-driver) and pip install -e '.[dev]'.
"""

import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gradwire.core.records.atomic import write_atomically
from gradwire.every_order.problem import LoadsAndStores
from gradwire.every_order.report import examine
from gradwire.every_order.runs import LR, Case
from gradwire.every_order.saved import save
from gradwire.pictures.finished import Recorded, load
from gradwire.pictures.page import make_page, pack
from gradwire.virtual_time import simulate
from strategies import Hogwild

PAGES = ROOT / "media" / "pages"
SIMULATED = "--train_size 1024 --epochs 1 --bandwidth 100mbit --compute 60ms"
GPT = "--dataset text --model gpt --model_options layers=2 --batch_size 1 --train_size 12 --epochs 1 --compute 60ms"
RUNS = {  # the name of each page: its title, what to look at, the options of simulate.py, and the steps, if not all
    "server": (
        "A server that waits for all",
        "Three gradients share the server's card, so none of them arrives early; then x is sent three times, and "
        "shares it again. A worker waits longer than it computes.",
        f"--strategy param_server --n_gpus 4 {SIMULATED}", None,
    ),
    "ring": (
        "A ring all-reduce",
        "While gradients are summed, every card sends and receives, one chunk after the other. Below, each chunk fills "
        "with the parts of the four ranks; then the whole sums travel round.",
        f"--strategy ring_all_reduce --n_gpus 4 {SIMULATED}", None,
    ),
    "slow_worker": (
        "An asynchronous server and a slow worker",
        "Rank 3 computes five times as long, and nobody waits for it. While it computes one gradient, the others "
        "change x: the staleness of its gradient, below, is how often.",
        f"--strategy async_param_server --n_gpus 4 --slow 3:5 {SIMULATED}", None,
    ),
    "death": (
        "The death of a backup worker",
        "The server closes a step with three of four gradients. That of rank 4 comes last in step 1 and is dropped: "
        "the cross. Rank 4 dies at 450 ms, and the others go on. What it had recorded is lost with it.",
        f"--strategy backup_workers --n_gpus 5 --kill 4@450ms {SIMULATED}", None,
    ),
    "lost_update": (
        "Hogwild: a lost update",
        "An update is a load and a store here, and the clock counts accesses to x, one a second. Between the load and "
        "the store of rank 1, rank 0 stores twice: both updates are lost, and crossed out below.",
        "", None,
    ),
    "prefetch": (
        "ZeRO-3 with prefetch",
        "Each rank keeps a quarter of every block. While one block computes, the chunks of the next are on their way "
        "to all: the crossing arrows. A pass waits for its first block only.",
        f"--strategy fully_sharded --prefetch --n_gpus 4 --bandwidth 300mbit {GPT}", (2, 1),
    ),
}  # fmt: skip


def record(name: str, folder: str) -> Recorded:
    """Make a run, with its files in a folder."""
    if options := RUNS[name][2]:
        with redirect_stdout(StringIO()):
            code = simulate.main([*options.split(), "--results_dir", folder, "--run_name", name])
        if code:
            raise SystemExit(code)
        return load(f"{folder}/{name}")
    case = Case(Hogwild(), 2, 2, own_steps=True, optimizer=partial(LoadsAndStores, lr=LR))
    found = examine(case, until_broken=True).counterexample
    assert found
    return replace(load(save(found, folder)[0]), path=f"{folder}/{name}")


def make(name: str) -> str:
    """Return the text of a page, whose run is recorded for it."""
    title, look, _, steps = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        return make_page([record(name, folder)], steps, f"{title}. {look}")


def listed() -> str:
    """Return the list of the pages, in Markdown."""
    text = (
        "# Recorded runs\n\nEach picture leads to one file: open it in a browser (on GitHub, save it first), press →.\n"
    )
    for name, (title, look, *_) in RUNS.items():
        text += f"\n## {title}\n\n[![{title}]({name}.png)]({name}.html)\n\n{look}\n"
    return text


def main() -> None:
    """Make the pages and the list, then the pictures."""
    from tests.browser import chromium

    PAGES.mkdir(exist_ok=True)
    for name in RUNS:
        with write_atomically(PAGES / f"{name}.html") as unfinished:
            unfinished.write_text(pack(make(name), RUNS[name][0]), encoding="utf-8")
    with write_atomically(PAGES / "README.md") as unfinished:
        unfinished.write_text(listed(), encoding="utf-8")
    with chromium() as browser:
        for name, (title, *_) in RUNS.items():
            browser.open(PAGES / f"{name}.html", width=520)
            browser.run("document.querySelector('h2').textContent = arguments[0]", title)
            browser.run("for (const hidden of document.querySelectorAll('.below, .right')) hidden.remove()")
            browser.frame()
            with write_atomically(PAGES / f"{name}.png") as unfinished:
                unfinished.write_bytes(browser.element("section").screenshot_as_png)
        browser.open(PAGES / "ring.html", width=1120)  # README.md shows it 830 wide
        with write_atomically(PAGES.parent / "page.png") as unfinished:
            unfinished.write_bytes(browser.driver.get_screenshot_as_png())


if __name__ == "__main__":
    main()
