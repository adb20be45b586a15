"""The animation of the ring: the trace is that of real processes, and only a whole one is drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.ring_animation import VALUES, animate, load, record
from records.errors import UsageError

pytestmark = pytest.mark.xdist_group("ring_animation")  # a run of the module is made once


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ring") / "trace.csv"
    record(path)
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"
    return path


def test_the_trace_tells_what_each_message_did(trace: Path) -> None:
    table = pd.read_csv(trace, keep_default_na=False)
    assert (table["t1_us"] >= table["t0_us"]).all()
    assert table["t0_us"].min() == 0
    sent, received = {}, {}
    for rank, rows in table.groupby("rank"):
        assert rows["t1_us"].is_monotonic_increasing
        assert Counter(rows["op"])["send"] == Counter(rows["op"])["recv"] == 6
        values = rows[VALUES].to_numpy()
        assert (values[0] == 10 * (rank + 1)).all()
        assert (values[-1] == 100).all()
        count: Counter[tuple[str, str]] = Counter()
        for event, before, after in zip(rows[1:].itertuples(), values, values[1:], strict=False):
            assert (before != after).sum() == (event.op == "recv")
            key = (event.tag, count[event.op, event.tag])
            count[event.op, event.tag] += 1
            if event.op == "send":
                assert (event.peer, event.bytes) == ((rank + 1) % 4, 4)
                sent[rank, *key] = after
            elif event.op == "recv":
                assert event.peer == (rank - 1) % 4
                received[event.peer, *key] = (before, after)
    assert len(sent) == 24
    assert sent.keys() == received.keys()
    for (src, tag, k), (before, after) in received.items():
        (chunk,) = np.flatnonzero(before != after)
        held = sent[src, tag, k][chunk]
        assert after[chunk] == (before[chunk] + held if tag == "share-reduce" else held)


def test_the_messages_to_draw_are_those_of_the_trace_step_by_step(trace: Path) -> None:
    held, hops = load(trace)
    assert list(zip(hops["tag"], hops["k"], strict=True)) == [
        (tag, k) for tag in ("share-reduce", "share-only") for k in range(3) for _ in range(4)
    ]
    for _, step in hops.groupby(["tag", "k"], sort=False):
        assert (held[step["src"], step["chunk"]] == step["value"]).all(), "a message leaves with what is shown there"
        held[step["dst"], step["chunk"]] = step["after"]
    assert (held == 100).all()


@pytest.mark.slow
def test_the_animation(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "ring.gif"
    animate(trace, path, between=1)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size < 1_500_000
    with Image.open(path) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames >= 6 * 4  # type: ignore[attr-defined]
        assert picture.info["loop"] == 0, "for ever"


@pytest.mark.parametrize("damage", ["empty", "foreign", "torn row", "torn between rows", "other value", "missing"])
def test_what_is_not_a_whole_trace_gets_one_line(trace: Path, tmp_path: Path, damage: str) -> None:
    text = trace.read_text()
    damaged = {
        "empty": "",
        "foreign": "rank,seconds\n0,1.5\n1,2.5\n",
        "torn row": text[: len(text) // 2],
        "torn between rows": text[: text.rindex("\n3,", 0, text.rindex(",recv,")) + 1],
        "other value": text.replace("100.0", "99.0", 1),
    }
    path = tmp_path / "damaged.csv"
    if damage in damaged:
        path.write_text(damaged[damage])
    with pytest.raises((UsageError, OSError), match=r"damaged\.csv") as error:
        animate(path, tmp_path / "out.gif", between=1)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("*.gif"))
