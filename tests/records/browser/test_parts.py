"""Pages of some steps, of ranks that died, of a run on another clock, in a narrow window."""

from pathlib import Path

from records.finished import Recorded
from records.messages import with_messages
from tests.browser import Browser
from tests.records.browser.helpers import MARKS, facts, open_page

pytestmark = MARKS


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
