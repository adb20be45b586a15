"""A page fits its window, has its colours, and is drawn in time."""

import io
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.browser import Browser
from tests.pictures.browser.helpers import MARKS, moment, open_page
from tests.pictures.samples import loaded, long

pytestmark = MARKS


def pixels(browser: Browser) -> np.ndarray:
    browser.frame()
    return np.asarray(Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("L"), dtype=float)


def test_dark_and_light_are_what_the_user_prefers_or_chooses(browser: Browser, pages: Path) -> None:
    browser.open(pages / "ring_all_reduce.html", dark=True)
    dark = pixels(browser)
    assert np.median(dark) < 60
    assert dark.std() > 10, "something is drawn"
    browser.element("#theme").click()
    assert np.median(pixels(browser)) > 200
    browser.element("#theme").click()
    assert np.abs(pixels(browser) - dark).mean() < 2
    browser.prefer(dark=False)
    browser.until("return document.documentElement.dataset.theme === 'light'")
    assert np.median(pixels(browser)) > 200


@pytest.mark.parametrize("width", [390, 900, 1440])
def test_nothing_is_wider_than_the_window_and_on_a_phone_a_finger_meets_every_button(
    browser: Browser, pages: Path, width: int
) -> None:
    for name in ("both", "ring_all_reduce"):
        browser.open(pages / f"{name}.html", width=width)
        assert browser.run("return document.documentElement.scrollWidth") <= width
        wide, shown = browser.run("const { scrollWidth, clientWidth } = document.querySelector('.code');"
                                  "return [scrollWidth, clientWidth]")  # fmt: skip
        assert wide <= shown, "no line of the code is cut"
    sizes = browser.run(
        "return [...document.querySelectorAll('header button, #bar button, select, summary, #scrub')]"
        ".map((one) => one.getBoundingClientRect()).map(({ width, height }) => Math.min(width, height))"
    )
    assert len(sizes) >= 14
    assert min(sizes) >= 44 or width > 390


@pytest.mark.parametrize(("name", "dark"), [("ring_all_reduce", False), ("both", True)])
def test_no_fault_of_accessibility_is_found(browser: Browser, pages: Path, name: str, dark: bool) -> None:
    browser.open(pages / f"{name}.html", dark=dark)
    browser.element("#messages summary").click()
    browser.element("#help summary").click()
    for _ in range(3):
        browser.element("#next").click()
    browser.frame()
    browser.run((resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = browser.driver.execute_async_script("axe.run().then(arguments[0])")
    assert [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found["violations"]] == []
    assert len(found["passes"]) > 15
    assert browser.element("#now").get_attribute("aria-live") == "polite"


def test_a_large_run_is_drawn_by_the_pixel(browser: Browser, pages: Path, tmp_path: Path) -> None:
    open_page(browser, tmp_path, long(loaded(pages, "ring_all_reduce.1")))
    assert browser.run("return page.times.length") == 50_000
    assert 10 < browser.run("return page.drawn.bars") < 1000, "what is in view"
    browser.element("#fit").click()
    browser.frame()
    bars, arrows = browser.run("return [page.drawn.bars, page.drawn.arrows]")
    width = browser.run("return page.lanes[0].width")
    assert 500 < bars <= 2 * 4 * width, "at most some for each pixel of a lane"
    assert 500 < arrows <= 4 * 4 * width
    browser.element("#last").click()
    assert moment(browser)[1] == 50_000
