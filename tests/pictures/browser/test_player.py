"""The player of a page: buttons, keys and the slider go to the events that they name."""

from pathlib import Path

import numpy as np
import pytest

from tests.browser import Browser, Keys
from tests.pictures.browser.helpers import MARKS, events_of, is_in_view, moment, press
from tests.ranks import wait_until

pytestmark = MARKS


def test_a_page_opens_at_the_first_message_of_the_first_step(browser: Browser, pages: Path) -> None:
    for name, server in (("ring_all_reduce", None), ("param_server", 0), ("async_param_server", 0)):
        browser.open(pages / f"{name}.html")
        events = events_of(pages, name)
        first = events[(events["epoch"] > 0) & (events["rank"] != server) & (events["op"] == "send")].iloc[0]
        assert moment(browser) == (first["t0"], first.name + 1)
        a, b = browser.run("return page.view")
        assert a <= first["t0"] <= b
        assert b == events.loc[(events["step"] < 2) & (events["rank"] != server), "t1"].max(), "two steps are in view"
        number = first["line"].split(":")[1]
        assert is_in_view(browser, f".code li.now:nth-child({number})")


def test_stepping_ends_one_step_before_the_next_begins(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    told = events.assign(of=events["step"].where(events["epoch"] > 0, -1)).sort_values(["of", "t0"], kind="stable")
    assert list(told.index) != list(events.index), "some ranks are ahead"
    ring.element("#first").click()
    assert moment(ring) == (events["t0"][0], 1)
    start = int((told["of"] < 1).sum()) - 20
    ring.run("for (let k = 1; k < arguments[0]; k++) document.getElementById('next').click()", start)
    for k in range(start, start + 40):
        ring.element("#next").click()
        assert moment(ring) == (pytest.approx(told["t0"].iloc[k]), told.index[k] + 1)
        assert f"rank {told['rank'].iloc[k]} " in ring.text("#now")
        assert f"event {k + 1} of " in ring.text("#time")
    ring.element("#previous").click()
    assert moment(ring)[1] == told.index[start + 38] + 1


def test_play_lets_time_pass_and_pause_stops_it(ring: Browser) -> None:
    before, _ = moment(ring)
    ring.element("#play").click()
    assert ring.text("#play") == "Pause"
    passed = moment(ring)[1]
    ring.until("return page.t > arguments[0] && page.passed > arguments[1] + 3", before, passed)
    ring.element("#play").click()
    at = moment(ring)
    for _ in range(5):
        ring.frame()
    assert moment(ring) == at
    assert ring.text("#play") == "Play"
    ring.element("#fit").click()
    ring.run("document.getElementById('speed').value = '4'")
    ring.element("#last").click()
    ring.element("#play").click()
    ring.until("return page.playing && page.t < page.end / 2")
    ring.until("return !page.playing")
    assert ring.run("return page.t === page.end && page.passed === page.times.length"), "it ends with the run"


def test_who_wants_no_motion_is_shown_event_after_event(browser: Browser, pages: Path) -> None:
    browser.open(pages / "ring_all_reduce.html", calm=True)
    first = moment(browser)[1]
    browser.run("document.getElementById('speed').value = '4'")
    browser.element("#play").click()
    moments: set[tuple[float, int]] = set()

    def has_played() -> bool:
        moments.add(moment(browser))
        return max(passed for _, passed in moments) >= first + 3

    assert wait_until(has_played)
    browser.element("#play").click()
    times = browser.run("return [...page.times]")
    assert all(t == times[passed - 1] for t, passed in moments if passed > first), "time stands at events only"
    browser.prefer()


def test_the_slider_goes_to_a_time(ring: Browser) -> None:
    slider = ring.element("#scrub")
    slider.send_keys(Keys.HOME)
    assert moment(ring)[0] == ring.run("return page.start")
    slider.send_keys(Keys.PAGE_UP, Keys.PAGE_UP)
    t, passed = moment(ring)
    start, end = ring.run("return [page.start, page.end]")
    assert t == pytest.approx(start + 0.2 * (end - start))
    assert passed == ring.run("return page.times.filter((one) => one <= page.t).length")
    a, b = ring.run("return page.view")
    assert a <= t <= b, "the view has followed"
    assert str(slider.get_attribute("aria-valuetext")).endswith("ms")


def test_keys_do_what_the_page_says(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    said = ring.run("return document.getElementById('help').textContent")
    assert all(key in said for key in ("Space", "Home", "End", "Tab"))
    press(ring, Keys.HOME)
    assert moment(ring)[1] == 1
    press(ring, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert moment(ring)[1] == 2
    press(ring, Keys.END, Keys.ARROW_RIGHT)
    assert moment(ring)[1] == len(events), "there is none after the last"
    press(ring, Keys.ARROW_LEFT, shift=True)
    sends = events.index[events["op"] == "send"]
    assert moment(ring)[1] == sends[-1] + 1
    a, b = ring.run("return page.view")
    press(ring, "+")
    c, d = ring.run("return page.view")
    assert d - c == pytest.approx((b - a) / 2)
    press(ring, "-")
    assert np.ptp(ring.run("return page.view")) == pytest.approx(b - a)
    press(ring, "0")
    assert ring.run("return page.view[0] === page.start && page.view[1] === page.end")
    press(ring, Keys.HOME, Keys.SPACE)
    assert ring.run("return page.playing")
    press(ring, Keys.SPACE)
    assert not ring.run("return page.playing")
    press(ring, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert ring.element("#follow").get_attribute("value") == "2"
    press(ring, Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert moment(ring)[1] == events.index[events["rank"] == 2][1] + 1, "only this rank's events"
    press(ring, Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    assert ring.element("#follow").get_attribute("value") == "-1"
