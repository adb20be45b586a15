"""The timeline of a run and its trace: valid, complete, and one clear line for whatever cannot be drawn."""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from gradwire.core.records.events import HIDDEN, MARKS, PHASES
from gradwire.core.records.recorder import Recorder
from gradwire.pictures.finished import BadRun
from gradwire.pictures.timeline import draw, legend, main, middle, trace, window
from gradwire.results import load_events
from tests.pictures.samples import WORLDS

ROLES = ["server", "worker", "worker"]
NUMBER = (int, float)
REQUIRED: dict[str, dict[str, Any]] = {  # of the trace event format, besides ph, name, pid and tid
    "X": {"cat": str, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "i": {"cat": str, "ts": NUMBER, "s": str, "args": dict},
    "s": {"cat": str, "ts": NUMBER, "id": int},
    "f": {"cat": str, "ts": NUMBER, "id": int, "bp": str},
    "M": {"args": dict},
}


def by_phase(made: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Check a trace against the rules of the format; return its events by ph."""
    made = json.loads(json.dumps(made, allow_nan=False))
    assert made["displayTimeUnit"] in ("ms", "ns")
    found: dict[str, list[dict[str, Any]]] = {ph: [] for ph in REQUIRED}
    for event in made["traceEvents"]:
        for key, kind in {"name": str, "pid": int, "tid": int, **REQUIRED[event["ph"]]}.items():
            assert isinstance(event[key], kind), (key, event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        found[event["ph"]].append(event)
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in found["X"]:
        # As Perfetto reads it: in whole nanoseconds, cut off.
        start, length = int(event["ts"] * 1000.0), int(event["dur"] * 1000.0)
        assert (start + length) / 1000 == event["ts"] + event["dur"], "no rounding"
        threads[event["tid"]].append((start, start + length))
    for slices in threads.values():
        around: list[int] = []
        for start, end in slices:  # in the order of the file
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1], "slices of a thread nest or are disjoint"
            around.append(end)
    for sent, received in zip(found["s"], found["f"], strict=True):
        assert [sent[key] for key in ("id", "name", "cat")] == [received[key] for key in ("id", "name", "cat")]
        assert sent["ts"] <= received["ts"], "sent before received"
        for flow, op in ((sent, "send"), (received, "recv")):
            tid, ts = flow["tid"], flow["ts"]
            inside = [x for x in found["X"] if x["tid"] == tid and x["ts"] <= ts <= x["ts"] + x["dur"]]
            assert op in {x["cat"] for x in inside}
    assert len({flow["id"] for flow in found["s"]}) == len(found["s"])
    names = {event["tid"]: event["args"]["name"] for event in found["M"] if event["name"] == "thread_name"}
    order = [event["tid"] for event in found["M"] if event["name"] == "thread_sort_index"]
    assert set(threads) <= set(names) == set(order)
    assert [event["name"] for event in found["M"]].count("process_name") == 1
    return found


@pytest.mark.parametrize("strategy", ["param_server", "ring_all_reduce"])
def test_a_run_as_picture_and_trace(own: Path, strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(os.listdir(own))
    name = f"{strategy}.1"
    assert main([str(own / name)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert set(os.listdir(own)) - before == {f"{name}.timeline.png", f"{name}.trace.json"}
    for part in (f"{own / name}.timeline.png", f"{own / name}.trace.json", "ui.perfetto.dev", "chrome://tracing"):
        assert part in said.out
    height, width, _ = imread(own / f"{name}.timeline.png").shape
    assert width == 900
    assert 200 < height < 600

    events = load_events(own / name).query("phase != 'evaluate'")
    found = by_phase(json.loads((own / f"{name}.trace.json").read_text(), parse_constant=pytest.fail))
    assert len(found["X"]) == events["phase"].isin(PHASES).sum()
    assert len(found["i"]) == events["phase"].isin(MARKS).sum()
    assert len(found["s"]) == (events["op"] == "send").sum() == (events["op"] == "recv").sum()
    assert {x["tid"] for x in found["X"]} == set(range(WORLDS[strategy]))
    accuracy = [mark["args"]["value"] for mark in found["i"] if mark["name"] == "test_accuracy"]
    assert accuracy == events.loc[events["phase"] == "test_accuracy", "value"].tolist()
    steps = {x["args"]["step"] for x in found["X"] if "step" in x["args"]}
    assert steps == set(range(1, int(events["step"].max()) + 1))
    waits = [(x["args"]["peer"], x["tid"]) for x in found["X"] if x["name"] == "wait"]
    assert waits
    assert all(0 <= peer < WORLDS[strategy] and peer != rank for peer, rank in waits), "every wait tells for whom"


def made_up() -> pd.DataFrame:
    """A server and two workers, two epochs of three steps of a second each, with a pause of 10 s between the epochs.

    In each, a worker computes for its first half; rank 2 lags 0.1 s behind. The server's step stays what it was.
    """
    server, *workers = recorders = [Recorder(rank) for rank in range(3)]
    for recorder in recorders:
        recorder.add("communicate", 0.0, 0.5, "send", peer=(recorder.rank + 1) % 3, tag="start")
    for epoch in (1, 2):
        for step in range(3 * epoch - 3, 3 * epoch):
            t0 = 1.0 + step + 10 * (epoch - 1)
            for worker in workers:
                begin = t0 + 0.1 * (worker.rank - 1)
                worker.epoch, worker.step = epoch, step
                worker.add("forward", begin, begin + 0.5)
                worker.add("wait", begin + 0.5, t0 + 1, peer=0, tag="parameters")
            server.epoch, server.step = epoch, 3 * (epoch - 1)
            server.add("wait", t0, t0 + 0.9, peer=2, tag="gradient")
            server.add("wait", t0 + 0.9, t0 + 0.90001, peer=1, tag="gradient")
            server.add("update", t0 + 0.95, t0 + 0.950001, version_applied=step)
            server.add(HIDDEN, t0, t0, "send", 1, "from formula", 9)
    return pd.concat([recorder.frame() for recorder in recorders], ignore_index=True)


def test_the_window_is_that_of_the_workers_steps() -> None:
    events = made_up()
    assert window(events, ROLES, 1, 1) == (1.0, 2.0)
    assert window(events, ROLES, 2, 2) == (2.0, 4.0)
    assert window(events, ROLES, 3, 2) == (3.0, 15.0)
    late = events.assign(t0=events["t0"].where(events["rank"] != 1, events["t1"]))
    assert window(late, ROLES, 2, 1) == (2.1, 3.0), "the earliest of all workers"
    for first, n in ((0, 1), (7, 1), (6, 2), (2, 0), (2, -1), (1, 10**30), (10**30, 1)):
        with pytest.raises(BadRun, match="the run has the steps 1 to 6"):
            window(events, ROLES, first, n)
    starts = [middle(events, ROLES, n) for n in (1, 2, 3, 4, 6, 7, 10**30)]
    assert starts == [5, 4, 4, 3, 1, 1, 1], "past the warm-up and inside an epoch"


def test_the_picture_shows_all_ranks_and_for_whom_they_wait() -> None:
    figure = Figure(figsize=(6, 3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    assert draw(left, made_up(), ROLES, 2, 1) == {"forward", "wait", "update"}
    assert draw(right, made_up(), ["worker"] * 3, 2, 2) == {"forward", "wait", "update"}
    legend(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "data", "forward", "backward", "compress", "communicate", "wait (← for rank)", "update"
    ]  # fmt: skip
    figure.canvas.draw()
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "rank 0 (server)", "rank 1 (worker)", "rank 2 (worker)"
    ]  # fmt: skip
    assert [text.get_text() for text in left.texts] == ["← 2", "← 0", "← 0"], "no label where none fits"
    assert left.get_xlabel() == "time (ms)"
    assert left.get_xlim() == pytest.approx((0, 1000))
    (top,) = left.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["step 2"]
    for bars in left.collections:
        for path in bars.get_paths():
            assert path.vertices[:, 0].min() > -1e-6
            assert path.vertices[:, 0].max() < 1000 + 1e-6, "clipped"


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.floats(0, 1e-7)), max_size=20))
def test_slices_nest_whatever_was_recorded(spans: list[tuple[int, int, float]]) -> None:
    recorder = Recorder()
    for start, length, more in spans:
        recorder.add("communicate", start / 1e6 + more, (start + length) / 1e6 + 2 * more, "recv", 1, "a")
    found = by_phase(trace(recorder.frame(), ["worker"] * 2))
    assert len(found["X"]) == len(spans)
