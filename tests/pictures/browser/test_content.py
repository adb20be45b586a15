"""What a page shows is what the events say."""

from pathlib import Path

import pytest

from gradwire.pictures.finished import Recorded
from gradwire.pictures.messages import with_messages
from tests.browser import ActionChains, Browser, Keys
from tests.pictures.browser.helpers import MARKS, N, events_of, facts, is_in_view, moment, open_page, press

pytestmark = MARKS


def click_at(browser: Browser, x: float, y: float) -> None:
    box = browser.element(".cursor")
    place = round(x - box.size["width"] / 2), round(y - box.size["height"] / 2)
    ActionChains(browser.driver).move_to_element_with_offset(box, *place).click().perform()


def test_a_click_on_a_message_or_an_event_tells_all_of_it(ring: Browser, pages: Path) -> None:
    events = events_of(pages, "ring_all_reduce")
    k, x0, y0, x1, y1 = ring.run(
        "const lanes = page.lanes[0], shown = lanes.shown.filter((m) => m.dst === m.src + 1);"
        "const message = shown[Math.floor(shown.length / 2)]; return [message.send, ...lanes.path(message)]"
    )
    click_at(ring, (x0 + x1) / 2, (y0 + y1) / 2)
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
    k, x, y = ring.run(
        "const lanes = page.lanes[0], run = lanes.run;"
        "const i = run.lanes[3].events.find((i) => run.phaseOf(i) === 'backward' && run.t0[i] > page.view[0]);"
        "return [i, lanes.x(0.9 * run.t0[i] + 0.1 * run.t1[i]), lanes.y(3)]"
    )
    click_at(ring, x, y)
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


def test_the_table_of_chunks_says_in_words_what_the_step_shown_has(ring: Browser) -> None:
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
    browser.open(pages / "param_server.html")
    assert browser.run("return page.lanes[0].strips.map((strip) => strip.draw.name)") == ["drawVersions"]


def test_two_runs_go_on_one_clock(browser: Browser, pages: Path) -> None:
    browser.open(pages / "both.html")
    both = ["param_server.1", "ring_all_reduce.1"]
    sections = browser.driver.find_elements("css selector", "section.run")
    assert [section.find_element("css selector", "h2").text.split(":")[0] for section in sections] == both
    times = browser.run("return [...page.times]")
    assert times == sorted(times)
    sizes = [len(events_of(pages, name)) for name in ("param_server", "ring_all_reduce")]
    assert len(times) == sum(sizes)
    browser.element("#next").click()
    browser.element("#fit").click()
    assert len({str(view) for view in browser.run("return page.lanes.map((one) => one.x.domain())")}) == 1
    names = set()
    for _ in range(40):
        names.add(browser.text("#now").split(": ")[1].split(",")[0])
        browser.element("#next").click()
    assert names == set(both)
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


def test_of_a_dead_rank_it_says_that_its_events_are_lost(browser: Browser, bereaved: Recorded, tmp_path: Path) -> None:
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
