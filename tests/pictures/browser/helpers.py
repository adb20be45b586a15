"""What the tests of pages in a browser read and press."""

from pathlib import Path

import pandas as pd
import pytest

from gradwire.pictures import page
from gradwire.pictures.finished import Recorded, load
from gradwire.pictures.messages import with_messages
from tests.browser import NEEDS_BROWSER, ActionChains, Browser, Keys
from tests.pictures.samples import WORLDS

N = WORLDS["ring_all_reduce"]
MARKS = [pytest.mark.xdist_group("browser"), pytest.mark.end_to_end, NEEDS_BROWSER]


def events_of(pages: Path, name: str) -> pd.DataFrame:
    """The events in the order of the page, with their messages."""
    run = load(str(pages / f"{name}.1"))
    return with_messages(run.events, run.roles)


def moment(browser: Browser) -> tuple[float, int]:
    """The time (seconds), and how many events have begun."""
    t, passed = browser.run("return [page.t, page.passed]")
    return t, passed


def facts(browser: Browser, section: int = 1) -> dict[str, str]:
    """What is said of the current event beside the lanes."""
    browser.frame()
    cells = browser.run(
        f"return [...document.querySelectorAll('section:nth-of-type({section}) .facts div')]"
        ".map((div) => [...div.children].map((one) => one.textContent))"
    )
    return dict(cells)


def press(browser: Browser, *keys: str, shift: bool = False) -> None:
    actions = ActionChains(browser.driver)
    if shift:
        actions.key_down(Keys.SHIFT)
    actions.send_keys(*keys)
    if shift:
        actions.key_up(Keys.SHIFT)
    actions.perform()


def open_page(browser: Browser, folder: Path, run: Recorded) -> None:
    (folder / "page.html").write_text(page.make_page([run]), encoding="utf-8")
    browser.open(folder / "page.html")


def is_in_view(browser: Browser, line: str) -> bool:
    """Whether a line of the code is in its box."""
    browser.frame()
    box, now = browser.element(".code").rect, browser.element(line).rect
    return bool(box["y"] <= now["y"] <= box["y"] + box["height"] - now["height"])
