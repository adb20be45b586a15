"""Pages of some steps, of ranks that died, of a run on another clock, in a narrow window."""

from pathlib import Path

import numpy as np

from records.finished import Recorded
from records.messages import with_messages
from tests.browser import Browser
from tests.records.browser.helpers import MARKS, facts, open_page

pytestmark = MARKS


def test_the_chunks_of_some_steps_are_those_of_the_whole_run(browser: Browser, some: Recorded, tmp_path: Path) -> None:
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


def test_all_times_of_the_second_run_are_moved(browser: Browser, some: Recorded, tmp_path: Path) -> None:
    moved = some.events.assign(t0=some.events["t0"] + 2.5, t1=some.events["t1"] + 2.5)
    later = Recorded(some.path, moved, some.metadata)
    open_page(browser, tmp_path, some, later)
    first, second = browser.run("return page.runs.map((run) => [[...run.t0], [...run.t1]])")
    np.testing.assert_allclose(second, first, atol=1e-9)
    assert browser.run("return page.end - page.start") < 1


def test_while_the_window_changes_its_size_something_is_drawn(browser: Browser, some: Recorded, tmp_path: Path) -> None:
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
