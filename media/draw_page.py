"""Take a picture of the page that steps through a ring all-reduce: media/page.png.

python media/draw_page.py

Needs Chromium and its driver (apt-get install chromium chromium-driver) and what requirements-dev.txt lists. The run is
in virtual time: four ranks, on a link so slow that the chunks are seen on their way.
"""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from records.files import write_atomically
from records.page import show
from records.timeline import load, window
from simulate import simulate
from strategies.ring_all_reduce import RingAllReduce
from tests.browser import Browser, chromium
from training.cluster import ClusterOptions
from training.options import Options

STEP, SHARE = 3, 0.62  # of the run, and how much of the step is over


def draw(browser: Browser, folder: Path) -> bytes:
    """Make the run and its page in `folder`; return the picture (PNG)."""
    options = Options(
        strategy=RingAllReduce(), n_gpus=4, epochs=1, bandwidth="100mbit", latency="200us", device="cpu",
        results_dir=str(folder), run_name="ring",
    )  # fmt: skip
    simulate(options, ClusterOptions(compute="20ms"), quiet=True)
    page = folder / "page.html"
    page.write_text(show(folder / "ring").text, encoding="utf-8")
    browser.open(page, width=1600)
    _, events, metadata = load(str(folder / "ring"))
    start, stop = window(events, metadata["roles"], STEP, 1)
    air = (stop - start) / 20
    browser.run("page.look(arguments[0], arguments[1]); page.goTo(arguments[2])",
                start - air, stop + air, start + SHARE * (stop - start))  # fmt: skip
    browser.frame()
    return browser.driver.get_screenshot_as_png()


def main() -> None:
    """Take the picture."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        picture = draw(browser, Path(folder))
    with write_atomically(Path(__file__).with_name("page.png")) as unfinished:
        unfinished.write_bytes(picture)


if __name__ == "__main__":
    main()
