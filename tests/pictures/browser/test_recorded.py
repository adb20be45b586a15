"""The recorded runs of media/pages: each opens, and is stepped through to its end."""

import pytest

from tests.browser import Browser
from tests.pictures.browser.helpers import MARKS
from tests.test_site import PAGES, RUNS

pytestmark = MARKS


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_is_stepped_through_to_its_end(browser: Browser, name: str) -> None:
    browser.open(PAGES / f"{name}.html")
    assert browser.text("#note")
    browser.element("#first").click()
    n, told = browser.run(
        "const n = page.times.length, told = new Set(), next = document.getElementById('next');"
        "for (let k = 0; k < n + 1; k++) { told.add(page.passed); next.click(); } return [n, told.size]"
    )
    assert (browser.text("#time").split("event ")[1], told) == (f"{n:,} of {n:,}", n)
    assert browser.run("return page.playing") is False


def test_the_lost_updates_are_told_and_the_dead_rank_has_its_gradient(browser: Browser) -> None:
    browser.open(PAGES / "lost_update.html")
    said = (
        "rank 1 loads version 0 of x, updates it, and stores it over version 2, which loses rank 0's update of step 1"
    )
    assert f"{said} and rank 0's update of step 2." in browser.text("#now"), "the page opens there"
    stores = "return [...page.runs[0].stores.values()].map(({ has, lost }) => [has.length, lost.length])"
    assert browser.run(stores) == [[1, 0], [2, 0], [1, 2], [2, 0]]
    assert browser.run("return page.lanes[0].strips.map((strip) => strip.draw.name)") == ["drawStores"]
    browser.open(PAGES / "death.html")
    half = "return page.lanes[0].shown.filter(({ send }) => send < 0).map(({ src, dst }) => [src, dst])"
    assert browser.run(half) == [[4, 0]], "of its two steps in view it has died in the second"
