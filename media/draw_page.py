"""Take a picture of the page of a run: media/page.png.

python media/draw_page.py

Needs Chromium and its driver (apt-get install chromium chromium-driver) and pip install -e '.[dev]'. The run
and its page are those of the README's commands, so the times in the picture are those of the machine that took it.
"""

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from records.atomic import write_atomically
from tests.browser import chromium


def commands() -> list[list[str]]:
    """Return the README's commands that make the run `ring` and its page, each as its arguments."""
    lines = re.findall(r"^    python (.+ring)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines if "--run_name ring" in line or "records.page" in line]


def main() -> None:
    """Make the run and its page, and take the picture of the page as it opens."""
    train, page = commands()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        subprocess.run([sys.executable, ROOT / train[0], *train[1:]], cwd=folder, check=True)
        subprocess.run([sys.executable, *page[:-1], Path(folder) / page[-1]], cwd=ROOT, check=True)
        browser.open(Path(folder) / f"{page[-1]}.page.html", width=1600)
        browser.frame()
        picture = browser.driver.get_screenshot_as_png()
    with write_atomically(Path(__file__).with_name("page.png")) as unfinished:
        unfinished.write_bytes(picture)


if __name__ == "__main__":
    main()
