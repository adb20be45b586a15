"""The page of a run: its data say what the events say, it is one file, and bad input gets one line."""

import base64
import gzip
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gradwire.core.records.events import OPS, PHASES
from gradwire.core.records.unfinished import EVENTS_SUFFIX
from gradwire.names import make_strategy
from gradwire.pictures import page
from gradwire.pictures.finished import BadRun
from gradwire.pictures.messages import with_messages
from gradwire.pictures.page import TYPES, main
from gradwire.results import load_events
from strategies import STRATEGIES
from tests.pictures.samples import loaded, simulated
from tests.runs import IN_MEMORY, ROOT, made, metadata, n_gpus_of
from tests.selection import by_default


def facts(text: str) -> dict[str, Any]:
    """What a page knows."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    found: dict[str, Any] = json.loads(data)
    return found


def unpacked(run: dict[str, Any]) -> pd.DataFrame:
    """The columns of a run, as a page reads them."""
    raw, columns, at = gzip.decompress(base64.b64decode(run["packed"])), {}, 0
    for name, kind in run["types"].items():
        columns[name] = np.frombuffer(raw, kind, run["n"], at)
        at += columns[name].nbytes
    assert at == len(raw)
    return pd.DataFrame(columns)


def spans(path: Path) -> pd.DataFrame:
    events = load_events(path)
    return events[events["phase"].isin(PHASES)].sort_values("t0", kind="stable").reset_index(drop=True)


# The file


@pytest.mark.parametrize("strategy", ["ring_all_reduce", "async_param_server"])
def test_a_page_is_one_file_with_all_events_of_the_run(
    own: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(os.listdir(own))
    assert main([str(own / f"{strategy}.1")]) == 0
    path = own / f"{strategy}.1.page.html"
    said = capsys.readouterr()
    assert said.err == ""
    assert str(path) in said.out
    assert set(os.listdir(own)) - before == {path.name}
    text = path.read_text(encoding="utf-8")
    assert "default-src 'none'" in text, "the browser refuses any network"
    assert not re.search(r"<(script|link|img|iframe)[^>]* (src|href)=\"(?!data:)", text)
    assert (ROOT / "gradwire" / "pictures" / "page" / "lib" / "d3.LICENSE").read_text() in text
    (run,) = facts(text)["runs"]
    expected, columns = spans(own / f"{strategy}.1"), unpacked(run)
    for name in ("t0", "t1", "bytes", "version_read", "version_applied", "step", "peer", "epoch", "rank"):
        np.testing.assert_array_equal(columns[name], expected[name].astype(TYPES[name]), name)
    assert [PHASES[code] for code in columns["phase"]] == list(expected["phase"])
    assert [OPS[code] for code in columns["op"]] == list(expected["op"])
    assert [run["tags"][code] for code in columns["tag"]] == list(expected["tag"])
    assert [run["lines"][code] for code in columns["line"]] == list(expected["line"])
    start, stop = facts(text)["view"]
    assert 0 <= start < stop <= expected["t1"].max()


def test_what_is_named_by_a_user_does_not_end_the_script(own: Path) -> None:
    for suffix in (EVENTS_SUFFIX, ".json", ".csv"):
        shutil.copy(own / f"single.1{suffix}", own / f"<!--data--><b>{suffix}")
    metadata = json.loads((own / "<!--data--><b>.json").read_text())
    metadata["options"]["model"] = "</script><script>alert(1)</script>"
    (own / "<!--data--><b>.json").write_text(json.dumps(metadata))
    cell = page.show(own / "<!--data--><b>", height=500)
    assert repr(cell) == "Page(height=500)", "it keeps no second copy"
    assert cell._repr_html_().startswith("<iframe")
    text = cell.text
    assert "alert(1)</script>" not in text
    assert facts(text)["runs"][0]["name"] == "<!--data--><b>"
    assert "<title>&lt;!--data--&gt;&lt;b&gt;</title>" in text


def test_two_runs_begin_their_first_epoch_at_the_same_time(own: Path) -> None:
    out = own / "both.html"
    assert main([str(own / "param_server.1"), f"{own}/ring_all_reduce.1.csv", "--out", str(out)]) == 0
    both = facts(out.read_text(encoding="utf-8"))["runs"]
    assert [run["name"] for run in both] == ["param_server.1", "ring_all_reduce.1"]
    begins = [run["shift"] + loaded(own, run["name"]).begins for run in both]
    assert both[0]["shift"] == 0
    assert begins[0] == pytest.approx(begins[1], abs=1e-9)


def test_steps_choose_what_is_on_the_page(results: Path) -> None:
    run = loaded(results, "ring_all_reduce.1")
    (whole,), (some,) = (facts(page.make_page([run], steps))["runs"] for steps in (None, (3, 2)))
    columns, all_columns = unpacked(some), unpacked(whole)
    assert set(columns["step"]) >= {2, 3}
    assert set(columns["step"]) <= {1, 2, 3, 4}
    both = [column for column in set(columns["message"]) - {-1} if (columns["message"] == column).sum() == 2]
    assert len(both) > 8, "messages keep their two ends"
    chunks = columns.loc[columns["chunk"] >= 0, ["t0", "rank", "op", "chunk"]]
    assert len(chunks) == len(chunks.merge(all_columns, on=list(chunks))), "and are not counted anew"


# The code


SEVERAL = ("async_param_server", "demo", "fully_sharded", "gossip", "hogwild", "ring_all_reduce", "streaming_diloco")


@pytest.mark.parametrize("name", by_default(SEVERAL, STRATEGIES))
def test_every_strategy_has_a_page(tmp_path: Path, name: str) -> None:
    make = made if name in IN_MEMORY else simulated
    make(tmp_path, name, n_gpus=n_gpus_of(name, 2), epochs=1)
    roles = metadata(tmp_path)["roles"]
    (run,) = facts(page.show(tmp_path / "run").text)["runs"]
    events = with_messages(load_events(tmp_path / "run"), roles)
    outside = events["phase"].isin(["data", "forward", "backward"])
    assert ((events["line"] != "") == ~outside).all(), "every event of an algorithm has its line, and no other has"
    assert run["missing"] == {}
    ends = events[events["op"].isin(["send", "recv"])].groupby("message")
    assert (ends["op"].value_counts() == 1).all()
    assert (ends["bytes"].nunique() == 1).all()
    assert (events["message"].ge(0) == events["op"].isin(["send", "recv", "read"])).all()


def test_records_of_before_there_were_lines_have_a_page(own: Path) -> None:
    path = own / f"ring_all_reduce.1{EVENTS_SUFFIX}"
    table = pd.read_csv(path, keep_default_na=False).drop(columns="line")
    table.to_csv(path, index=False, compression="gzip")
    assert (load_events(path)["line"] == "").all()
    (run,) = facts(page.show(own / "ring_all_reduce.1").text)["runs"]
    assert run["lines"] == [""]
    assert run["sources"] == {}


OWN = '''
from dataclasses import dataclass

from strategies.collectives import average
from gradwire.core.strategy.traits import Cost, Traffic
from strategies.all_reduce.ring_all_reduce import RingAllReduce


from greeting import Greeting


@dataclass(kw_only=True)
class Mine(Greeting, RingAllReduce):
    """A ring that says hello first."""

    def cost(self, kind=None):
        return Cost(worker=Traffic("2 (N - 1) + 1", "2 (N - 1) P / N"))

    def step(self, n_samples):
        self.greet()
        super().step(n_samples)
'''
HELPER = """class Greeting:
    def greet(self):
        self.transport.isend(None, (self.transport.rank + 1) % self.transport.world_size, "hello")
        self.transport.recv((self.transport.rank - 1) % self.transport.world_size, "hello")
"""


@pytest.mark.parametrize("extended", [True, False])
def test_the_code_of_a_strategy_elsewhere_is_shown(
    tmp_path: Path, extended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the line in a helper's file if the strategy extends its class, else with that of its caller."""
    own = OWN if extended else OWN.replace("(Greeting, ", "(").replace("self.greet()", "Greeting.greet(self)")
    (tmp_path / "mine.py").write_text(own)
    (tmp_path / "greeting.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "greeting"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    simulated(tmp_path / "results", make_strategy("mine:Mine"), name="own", n_gpus=2, epochs=1)
    (run,) = facts(page.show(tmp_path / "results" / "own").text)["runs"]
    file = str((tmp_path / "mine.py").resolve())
    helper = str((tmp_path / "greeting.py").resolve())
    assert set(run["sources"]) >= {helper if extended else file, "strategies/collectives.py"}
    hello = spans(tmp_path / "results" / "own").query("tag == 'hello' and op == 'send'")["line"].unique()
    assert list(hello) == [f"{helper}:3" if extended else f"{file}:{own[: own.index('greet(')].count(chr(10)) + 1}"]
    Path(helper if extended else file).write_text(f"# new\n{own}")
    (run,) = facts(page.show(tmp_path / "results" / "own").text)["runs"]
    assert "has changed since the run" in run["missing"][helper if extended else file]


# Bad input


def test_steps_that_have_room_are_the_workers_at_the_pace_of_the_slowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts the updates of all, and the fastest worker is far ahead: what is proposed is not refused."""
    simulated(tmp_path, "async_param_server", epochs=8, bandwidth=1e9, latency=1e-5)
    run = loaded(tmp_path)
    for most in (1000, 100):
        monkeypatch.setattr(page, "MAX_EVENTS", most)
        with pytest.raises(BadRun, match=rf"a page holds {most:,};") as refused:
            page.make_page([run])
        first, n = map(int, re.findall(r"--steps? (\d+)", str(refused.value)))
        assert len(unpacked(facts(page.make_page([run], (first, n)))["runs"][0])) <= most
        with pytest.raises(BadRun, match="a page holds"):
            page.make_page([run], (first, n + 1))
    monkeypatch.setattr(page, "MAX_EVENTS", 3)
    with pytest.raises(BadRun, match=r"--step 2 --steps 1$"):
        page.make_page([run], (2, 3))


def test_two_long_runs_have_a_page_together_only_if_it_is_not_too_large(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [loaded(results, f"{name}.1") for name in ("ring_all_reduce", "param_server")]
    size = len(page.make_page(runs).encode())
    monkeypatch.setattr(page, "MAX_BYTES", size - 1)
    with pytest.raises(BadRun, match="ask for fewer steps, such as --step") as refused:
        page.make_page(runs)
    first, n = map(int, re.findall(r"--steps? (\d+)", str(refused.value)))
    assert len(page.make_page(runs, (first, n)).encode()) < size
