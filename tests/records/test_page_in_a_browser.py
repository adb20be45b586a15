"""The page of a run in a real browser: what it shows is what the events say, to the mouse, to keys, to a reader."""

import colorsys
import io
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from records import page
from records.events import PHASES
from records.page.columns import with_messages
from records.timeline import COLOURS, load
from tests.browser import NEEDS_BROWSER, Browser, chromium, wait_for
from tests.records.samples import WORLDS, loaded, simulated
from virtual_time.launcher import Death

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.end_to_end, NEEDS_BROWSER]

N = WORLDS["ring_all_reduce"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def pages(results: Path) -> Path:
    """The folder of the pages, beside the records."""
    for strategy in WORLDS:
        (results / f"{strategy}.html").write_text(page.show(results / f"{strategy}.1").text)
    both = page.show(results / "param_server.1", results / "ring_all_reduce.1")
    (results / "both.html").write_text(both.text)
    return results


def events_of(pages: Path, name: str) -> pd.DataFrame:
    """The events in the order of the page, with their messages."""
    _, events, metadata = load(str(pages / f"{name}.1"))
    return with_messages(events, metadata["roles"])


@pytest.fixture
def ring(browser: Browser, pages: Path) -> Browser:
    browser.open(pages / "ring_all_reduce.html")
    return browser


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser: Browser) -> Iterator[None]:
    """No page says anything on the console, or asks for anything over a network."""
    yield
    assert browser.logs() == ([], [])


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


# The player


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


def is_in_view(browser: Browser, line: str) -> bool:
    """Whether a line of the code is in its box."""
    browser.frame()
    box, now = browser.element(".code").rect, browser.element(line).rect
    return bool(box["y"] <= now["y"] <= box["y"] + box["height"] - now["height"])


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


def test_of_workers_that_do_not_keep_step_the_times_are_followed(browser: Browser, pages: Path) -> None:
    browser.open(pages / "async_param_server.html")
    assert browser.run("return page.walk.every((p, k) => p === k)")
    browser.open(pages / "param_server.html")
    steps = browser.run("const [run] = page.runs; return [...page.walk].map((p) => run.stepOf[page.which[p]])")
    assert steps == sorted(steps), "of the server too"
    assert {*steps} == {-1, *events_of(pages, "param_server").query("rank > 0")["step"]}


def test_stepping_ends_at_the_last_event(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    ring.element("#last").click()
    assert moment(ring)[1] == len(events)
    ring.element("#next").click()
    assert moment(ring)[1] == len(events), "there is none after the last"


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


def test_play_ends_with_the_run_and_begins_again(ring: Browser) -> None:
    ring.element("#fit").click()
    ring.run("document.getElementById('speed').value = '4'")
    ring.element("#last").click()
    ring.element("#play").click()
    ring.until("return page.playing && page.t < page.end / 2")
    ring.until("return !page.playing")
    assert ring.run("return page.t === page.end && page.passed === page.times.length")


def test_who_wants_no_motion_is_shown_event_after_event(browser: Browser, pages: Path) -> None:
    browser.open(pages / "ring_all_reduce.html", calm=True)
    first = moment(browser)[1]
    browser.run("document.getElementById('speed').value = '4'")
    browser.element("#play").click()
    moments: set[tuple[float, int]] = set()

    def has_played() -> bool:
        moments.add(moment(browser))
        return max(passed for _, passed in moments) >= first + 3

    wait_for(has_played, "three events of the play")
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
    press(ring, Keys.END)
    assert moment(ring)[1] == len(events)
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


def test_every_control_is_reached_with_tab(ring: Browser) -> None:
    ring.element("body").click()
    reached = set()
    for _ in range(30):
        press(ring, Keys.TAB)
        reached.add(ring.run("return document.activeElement.id || document.activeElement.className"))
    assert {"first", "previous", "play", "next", "last", "speed", "follow", "in", "out", "fit", "theme"} <= reached
    assert {"scrub", "lanes", "code"} <= reached


# What it shows


def test_a_click_on_a_message_tells_all_of_it(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    k, x0, y0, x1, y1 = ring.run(
        "const lanes = page.lanes[0], shown = lanes.shown.filter((m) => m.dst === m.src + 1);"
        "const message = shown[Math.floor(shown.length / 2)]; return [message.send, ...lanes.path(message)]"
    )
    box = ring.element(".cursor")
    middle = box.size["width"] / 2, box.size["height"] / 2
    place = round((x0 + x1) / 2 - middle[0]), round((y0 + y1) / 2 - middle[1])
    ActionChains(ring.driver).move_to_element_with_offset(box, *place).click().perform()
    assert moment(ring)[1] == k + 1
    sent = events.iloc[k]
    received = events[(events["message"] == sent["message"]) & (events["op"] == "recv")].iloc[0]
    told = facts(ring)
    assert told["who"] == f"rank {sent['rank']} → rank {sent['peer']}"
    assert told["what"] == sent["tag"]
    assert told["bytes"] == f"{sent['bytes']:,}"
    assert told["chunk"].startswith(f"{sent['chunk']} ")
    assert told["when"] == f"epoch {sent['epoch']}, step {sent['step'] + 1}"
    for name, t in (("sent", sent["t0"]), ("received", received["t0"])):
        assert float(told[name].split()[0]) == pytest.approx(1e3 * t, abs=0.06), name
    assert f"sends chunk {sent['chunk']}" in ring.text("#now")


def test_a_click_on_an_event_goes_to_it(ring: Browser, pages: Path) -> None:
    k, x, y = ring.run(
        "const lanes = page.lanes[0], run = lanes.run;"
        "const i = run.lanes[3].events.find((i) => run.phaseOf(i) === 'backward' && run.t0[i] > page.view[0]);"
        "return [i, lanes.x(0.9 * run.t0[i] + 0.1 * run.t1[i]), lanes.y(3)]"
    )
    box = ring.element(".cursor")
    place = round(x - box.size["width"] / 2), round(y - box.size["height"] / 2)
    ActionChains(ring.driver).move_to_element_with_offset(box, *place).click().perform()
    assert moment(ring)[1] == k + 1
    assert "runs the backward pass" in ring.text("#now")


def test_the_chunks_fill_as_the_messages_come(ring: Browser, pages: Path) -> None:
    """Compared with what follows from the messages alone: what was in the chunk as it was sent, is added or copied."""
    events = events_of(pages, "ring_all_reduce")
    of_step = {step: [[{rank} for _ in range(N)] for rank in range(N)] for step in events["step"].unique()}
    on_the_way: dict[int, set[int]] = {}
    for k, event in enumerate(events.head(3 * len(events) // 5).itertuples()):
        held = of_step[event.step]
        if event.chunk >= 0 and event.op == "send":
            on_the_way[event.message] = set(held[event.rank][event.chunk])
        elif event.chunk >= 0:
            came = on_the_way.pop(event.message)
            is_sum = event.tag == "share-reduce"
            held[event.rank][event.chunk] = held[event.rank][event.chunk] | came if is_sum else came
        shown = ring.run(
            "const { chunks } = page.runs[0], [i] = arguments; return chunks.state(i + 1, chunks.roundOf(i))", k
        )
        assert [[set(chunk) for chunk in rank] for rank in shown] == held, k
    assert all(len(chunk) == N for rank in of_step[1] for chunk in rank)


def test_the_table_of_chunks_is_of_the_step_shown(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    first = events.index[(events["step"] == 2) & (events["phase"] == "data")][0]  # while others end step 2
    ring.run("page.goTo(page.runs[0].t0[arguments[0]])", int(first))
    assert ring.text(".chunks caption").startswith("Chunks of the ring in step 3: ")
    assert "0 of 16 sums are whole" in ring.text(".chunks caption")
    assert facts(ring)["when"] == "epoch 1, step 3"
    ring.element("#first").click()
    assert ring.text(".chunks caption").startswith("Chunks of the ring: "), "before the first"


def test_the_table_of_chunks_says_it_in_words(ring: Browser) -> None:
    ring.element("#first").click()
    for _ in range(100):
        if "receives chunk" in ring.text("#now"):
            break
        ring.element("#next").click()
    words = ring.run("return [...document.querySelectorAll('.chunks td[aria-label]')].map((td) => td.ariaLabel)")
    assert len(words) == N**2
    assert "2 of 4 parts" in {word.split(",")[0] for word in words}
    assert any("on its way to rank" in word for word in words)
    assert "0 of 16 sums are whole" in ring.text(".chunks caption")
    ring.element("#last").click()
    assert "16 of 16 sums are whole" in ring.text(".chunks caption")
    assert len(ring.driver.find_elements("css selector", ".chunks i.in")) == 64


def test_the_line_at_work_is_shown(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    k = events.index[(events["op"] == "send") & (events["tag"] == "share-only")][0]
    ring.run("document.getElementById('first').click()")
    for _ in range((events["op"][1 : k + 1] == "send").sum()):
        press(ring, Keys.ARROW_RIGHT, shift=True)
    assert moment(ring)[1] == k + 1
    line = ring.text(".code li.now")
    assert 'transport.isend(chunks[(r + 1 - s) % N], right, "share-only")' in line
    assert str(events["rank"][k]) in line.split()[0]
    assert f"strategies/collectives.py, line {events['line'][k].split(':')[1]}" in ring.text(".file")
    assert is_in_view(ring, ".code li.now")
    box = ring.element(".code").rect
    assert box["y"] + box["height"] <= 900, "of the window too"


def test_outside_the_algorithm_its_next_line_is_in_view(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    k = events.index[(events["step"] == 1) & (events["phase"] == "data")][0]
    later = events[(events["rank"] == events["rank"][k]) & (events.index > k) & (events["line"] != "")]
    file, number = later["line"].iloc[0].split(":")
    ring.run("document.querySelector('.code').scrollTop = 0; page.goTo(page.runs[0].t0[arguments[0]])", int(k))
    assert ring.text(".file").endswith(f"in the training loop, outside the algorithm; next at {file}, line {number}")
    assert is_in_view(ring, f".code li:nth-child({number})")
    assert not ring.driver.find_elements("css selector", ".code li.now")


def test_a_server_shows_versions_and_staleness(browser: Browser, pages: Path) -> None:
    browser.open(pages / "async_param_server.html")
    events = events_of(pages, "async_param_server")
    used = events[(events["phase"] == "update") & (events["version_read"] >= 0)]
    stale = used[used["version_applied"] > used["version_read"]].iloc[-1]
    k = int(stale.name)
    browser.run("document.getElementById('last').click()")
    for _ in range(len(events) - k - 1):
        browser.element("#previous").click()
    assert moment(browser)[1] == k + 1
    by = stale["version_applied"] - stale["version_read"]
    assert f"staleness {by}." in browser.text("#now")
    assert facts(browser)["x at rank 0"] == f"version {stale['version_applied'] + 1}"
    assert browser.run("return page.lanes[0].strips.length") == 2
    message = events[(events["op"] == "recv") & (events["rank"] == 0) & (events.index < k)].iloc[-1]
    browser.run("document.getElementById('previous').click()")
    assert facts(browser)["version of x"] == str(message["version"]) == str(stale["version_read"])
    assert not browser.driver.find_elements("css selector", ".chunks table"), "no ring, no chunks"


def test_a_run_without_stale_gradients_has_no_row_of_staleness(browser: Browser, pages: Path) -> None:
    browser.open(pages / "param_server.html")
    assert browser.run("return page.lanes[0].strips.map((strip) => strip.draw.name)") == ["drawVersions"]


def test_what_is_not_recorded_has_a_name(ring: Browser) -> None:
    assert "not recorded" in ring.text("#legend")
    ring.run(
        "const [lanes] = page.lanes; lanes.find = () => -1;"
        "lanes.hint(200, -1); globalThis.outside = lanes.above.title; lanes.hint(200, lanes.y(0))"
    )
    assert ring.run("return [outside, page.lanes[0].above.title.slice(0, 12)]") == ["", "not recorded"]


def test_records_without_lines_say_so(browser: Browser, pages: Path, tmp_path: Path) -> None:
    path, events, metadata = load(str(pages / "ring_all_reduce.1"))
    (tmp_path / "old.html").write_text(page.make_page([page.Run(path, events.assign(line=""), metadata)]))
    browser.open(tmp_path / "old.html")
    assert "do not say which line" in browser.text(".file")
    (tmp_path / "changed.html").write_text(page.make_page([page.Run(path, events, {**metadata, "sources": {}})]))
    browser.open(tmp_path / "changed.html")
    browser.element("#last").click()
    assert "has changed since the run" in browser.text(".file")


def test_two_runs_go_on_one_clock(browser: Browser, pages: Path) -> None:
    browser.open(pages / "both.html")
    both = ["param_server.1", "ring_all_reduce.1"]
    sections = browser.driver.find_elements("css selector", "section.run")
    assert [one.find_element("css selector", "h2").text.split(":")[0] for one in sections] == both
    times = browser.run("return [...page.times]")
    assert times == sorted(times)
    sizes = [len(events_of(pages, name)) for name in ("param_server", "ring_all_reduce")]
    assert len(times) == sum(sizes)
    browser.element("#next").click()
    browser.element("#fit").click()
    assert len({str(view) for view in browser.run("return page.lanes.map((one) => one.x.domain())")}) == 1
    names = {browser.text("#now").split(": ")[1].split(",")[0]}
    for _ in range(40):
        browser.element("#next").click()
        names.add(browser.text("#now").split(": ")[1].split(",")[0])
    assert names == {"param_server.1", "ring_all_reduce.1"}
    assert browser.run("return page.runs.map((run) => page.counts[run.number][page.times.length])") == sizes
    assert facts(browser, 1)["rank"]
    assert facts(browser, 2)["rank"]


def test_the_table_of_messages_has_what_is_in_view(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    ring.element("#messages summary").click()
    a, b = ring.run("return page.view")
    ends = events[events["message"] >= 0].groupby("message")["t0"].agg(["min", "max"])
    in_view = ((ends["min"] <= b) & (ends["max"] >= a)).sum()
    assert ring.text("#messages summary") == f"Messages in view: {in_view}"
    ring.until(f"return document.querySelectorAll('#messages tbody tr').length === {in_view}")
    cells = ring.run(  # at once, for the page draws its rows anew when it likes
        "const rows = document.querySelectorAll('#messages tbody tr'), row = rows[rows.length >> 1];"
        "const cells = [...row.querySelectorAll('td')].map(cell => cell.innerText);"
        "row.querySelector('button').click(); return cells"
    )
    told = facts(ring)
    assert told["who"] == f"{cells[1]} → {cells[2]}"
    assert [told["what"], told["bytes"]] == cells[3:5]
    assert told["sent"] == cells[0]


# How it looks


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


@pytest.mark.parametrize("width", [480, 900, 1600])
def test_nothing_is_wider_than_the_window(browser: Browser, pages: Path, width: int) -> None:
    for name in ("ring_all_reduce", "both"):
        browser.open(pages / f"{name}.html", width=width)
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_on_a_phone_a_finger_meets_every_button(browser: Browser, pages: Path) -> None:
    browser.open(pages / "ring_all_reduce.html", width=390)
    sizes = browser.run(
        "return [...document.querySelectorAll('header button, #bar button, select, summary, #scrub')]"
        ".map((one) => one.getBoundingClientRect()).map(({ width, height }) => Math.min(width, height))"
    )
    assert len(sizes) >= 14
    assert min(sizes) >= 44


def test_no_chunk_has_the_hue_of_a_phase() -> None:
    style = (Path(page.__file__).with_name("page.css")).read_text()
    chunks = re.findall(r"--chunk-\d: (#\w{6})", style)
    assert len(chunks) == 2 * 7
    phases = [hue for hue, saturation in map(hue_of, COLOURS.values()) if saturation > 0.1]
    for chunk in chunks:
        assert all(min(abs(hue_of(chunk)[0] - hue), 360 - abs(hue_of(chunk)[0] - hue)) >= 20 for hue in phases), chunk


def hue_of(colour: str) -> tuple[float, float]:
    """The hue (degrees) and the saturation of a colour."""
    hue, _, saturation = colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    return 360 * hue, saturation


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["ring_all_reduce", "both", "async_param_server"])
def test_no_fault_of_accessibility_is_found(browser: Browser, pages: Path, name: str, dark: bool) -> None:
    browser.open(pages / f"{name}.html", dark=dark)
    browser.element("#messages summary").click()
    browser.element("#help summary").click()
    for _ in range(3):
        browser.element("#next").click()
    browser.frame()
    browser.run((resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = browser.driver.execute_async_script("axe.run().then(arguments[0])")
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]] == []
    assert len(found["passes"]) > 15
    assert browser.element("#now").get_attribute("aria-live") == "polite"


def test_a_large_run_is_drawn_by_the_pixel(browser: Browser, pages: Path, tmp_path: Path) -> None:
    path, events, metadata = load(str(pages / "ring_all_reduce.1"))
    body = events[events["phase"].isin(PHASES)]
    length, n = body["t1"].max(), -(-50_000 // len(body))
    steps = body["step"].max() + 1
    parts = [
        body.assign(t0=body["t0"] + i * length, t1=body["t1"] + i * length, step=body["step"] + i * steps)
        for i in range(n)
    ]
    many = pd.concat(parts, ignore_index=True)[:50_000]
    (tmp_path / "many.html").write_text(page.make_page([page.Run(path, many, metadata)]))
    browser.open(tmp_path / "many.html")
    assert browser.run("return page.times.length") == 50_000
    few = browser.run("return page.drawn.bars")
    assert 10 < few < 1000, "what is in view"
    browser.element("#fit").click()
    browser.frame()
    bars, arrows = browser.run("return [page.drawn.bars, page.drawn.arrows]")
    width = browser.run("return page.lanes[0].width")
    assert 500 < bars <= 2 * 4 * width, "at most some for each pixel of a lane"
    assert 500 < arrows <= 4 * 4 * width
    frames = browser.run("return page.drawn.frames")
    for key in ("+", "+", "-", "-"):
        press(browser, key)
        browser.frame()
    drawn = browser.run("return page.drawn.frames") - frames
    assert 4 <= drawn <= 8, "a frame for each change, and none without one"
    browser.frame()
    assert browser.run("return page.drawn.frames") == frames + drawn
    browser.element("#last").click()
    assert moment(browser)[1] == 50_000


def test_it_shows_in_the_cell_of_a_notebook(browser: Browser, pages: Path, tmp_path: Path) -> None:
    cell = page.show(pages / "ring_all_reduce.1")._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><title>notebook</title><div>{cell}</div>")
    browser.open(tmp_path / "notebook.html", ready=False)
    browser.driver.switch_to.frame(browser.element("iframe"))
    try:
        browser.until("return !!globalThis.page && page.drawn.frames > 0")
        passed = moment(browser)[1]
        browser.element("#next").click()
        assert moment(browser)[1] == passed + 1
        assert re.search(r"rank \d", browser.text("#now"))
    finally:
        browser.driver.switch_to.default_content()


# Of some steps, of ranks that died, of a run on another clock, in a narrow window


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> page.Run:
    simulated(folder := tmp_path_factory.mktemp("ring"), "ring_all_reduce")
    return loaded(folder)


@pytest.fixture(scope="module")
def bereaved(tmp_path_factory: pytest.TempPathFactory) -> page.Run:
    """A run of which rank 2 dies, and rank 3, which returns."""
    simulated(folder := tmp_path_factory.mktemp("bereaved"), "async_param_server", Death(3, 0.02, 0.04), Death(2, 0.03))
    return loaded(folder)


def open_page(browser: Browser, folder: Path, *runs: page.Run, width: int = 1600, **options: Any) -> None:
    (folder / "page.html").write_text(page.make_page(runs, **options), encoding="utf-8")
    browser.open(folder / "page.html", width=width)


def test_the_chunks_of_some_steps_are_those_of_the_whole_run(browser: Browser, some: page.Run, tmp_path: Path) -> None:
    script = (
        "const run = page.runs[0], { chunks } = run;"
        "return [...run.t0].map((t, i) => [t, run.rank[i], chunks.state(i + 1, chunks.roundOf(i))])"
    )
    open_page(browser, tmp_path, some)
    whole = {(t, rank): state for t, rank, state in browser.run(script)}
    for step in (2, 3, 5):
        open_page(browser, tmp_path, some, steps=(step, 1))
        found = browser.run(script)
        assert len(found) > 4 * 12
        same = {(t, rank): state for t, rank, state in found}  # of what is at the same time, the last
        end = browser.run("return page.end")
        ranks = [rank for rank in range(4) if any(at == rank for _, at in same)]
        for (t, rank), state in same.items():
            if t < end:
                assert state[rank] == whole[t, rank][rank], (step, t, rank)
        assert ranks == [0, 1, 2, 3]


def test_of_a_dead_rank_it_says_that_its_events_are_lost(browser: Browser, bereaved: page.Run, tmp_path: Path) -> None:
    open_page(browser, tmp_path, bereaved)
    events = with_messages(bereaved.events, bereaved.roles, bereaved.died)
    said = browser.text("h2")
    assert "Rank 2 died; its events are lost." in said
    begins = events.loc[events["rank"] == 3, "t0"].min()
    assert f"Rank 3 died; its events before {1e3 * begins:.2f} ms are lost." in said
    assert "Rank 1 died" not in said
    browser.element("#fit").click()
    browser.frame()
    labels = "const lanes = page.lanes[0]; return lanes.labels.filter(([, top]) => top === lanes.y(2) - 7)"
    assert len(browser.run(labels)) == 1, "and nothing else is in its lane"
    both_ends = events.groupby("message")["op"].transform("nunique") == 2
    alone = events[(events["message"] >= 0) & ~both_ends]
    for rank, of_rank in alone.groupby("peer"):
        for op, name in (("send", "received"), ("recv", "sent")):
            k = of_rank.index[of_rank["op"] == op][0]
            browser.run("const run = page.runs[0]; page.goTo(run.t0[arguments[0]])", int(k))
            while browser.run("return page.passed") > k + 1:
                browser.element("#previous").click()
            browser.frame()
            assert facts(browser)[name] == f"not known: rank {rank} died, and its events are lost"
    assert set(alone["peer"]) == {2, 3}


def test_all_times_of_the_second_run_are_moved(browser: Browser, some: page.Run, tmp_path: Path) -> None:
    later = page.Run(
        some.path, some.events.assign(t0=some.events["t0"] + 2.5, t1=some.events["t1"] + 2.5), some.metadata
    )
    open_page(browser, tmp_path, some, later)
    first, second = browser.run("return page.runs.map((run) => [[...run.t0], [...run.t1]])")
    np.testing.assert_allclose(second, first, atol=1e-9)
    assert browser.run("return page.end - page.start") < 1


def test_numbers_of_workers_do_not_cover_each_other(browser: Browser, bereaved: page.Run, tmp_path: Path) -> None:
    open_page(browser, tmp_path, bereaved)
    pins = [{"at": at, "level": level} for at, level in ((0, 0), (10, 40), (14, 50), (30, 50), (40, 0), (55.5, 3))]
    free = browser.run("return arguments[0].map((_, k) => page.isFree(arguments[0], k))", pins)
    assert free == [True, False, False, True, False, False]


def test_a_moment_has_the_unit_that_its_time_needs(browser: Browser, some: page.Run, tmp_path: Path) -> None:
    open_page(browser, tmp_path, some)
    end = browser.run("return page.end")
    assert end > 0.02
    browser.run("page.goTo(page.end); page.look(page.end - 1e-4, page.end)")
    assert float(browser.text("#time").split(" ms,")[0]) == pytest.approx(1e3 * end, abs=1e-3)
    browser.run("page.goTo(page.start); page.look(page.start, page.start + 1e-4)")
    assert " µs," in browser.text("#time")


def test_while_the_window_changes_its_size_something_is_drawn(browser: Browser, some: page.Run, tmp_path: Path) -> None:
    open_page(browser, tmp_path, some)
    browser.run(  # this observer is told after the page's, in the frame of the change
        "const { canvas } = page.lanes[0], all = () => [0, 0, canvas.width, canvas.height];"
        "const look = () => canvas.getContext('2d').getImageData(...all()).data.some((one) => one);"
        "const box = document.getElementById('runs'); box.style.width = '900px';"
        "new ResizeObserver(() => { globalThis.drawn ??= [look(), canvas.width]; }).observe(box);"
    )
    drawn, width = browser.until("return globalThis.drawn")
    assert width < 900, "the canvas has its new size"
    assert drawn


@pytest.mark.parametrize("width", [320, 360, 480, 1000])
def test_the_box_of_keys_is_in_the_window(browser: Browser, some: page.Run, tmp_path: Path, width: int) -> None:
    open_page(browser, tmp_path, some, width=width)
    browser.element("#help summary").click()
    browser.frame()
    left, top, right, bottom = browser.run(
        "const box = document.querySelector('#help dl').getBoundingClientRect();"
        "return [box.left, box.top, box.right, box.bottom]"
    )
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= 900
    assert right - left > 250
