"""The animation of the ring: the trace is that of real processes, and only a whole one is drawn."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.cases import RING_TRACE
from experiments.measured import KEPT
from gradwire.core.records.errors import UsageError
from media.draw_ring import animate, load, record


def test_the_messages_to_draw_are_those_of_the_trace_step_by_step() -> None:
    held, hops = load(KEPT / RING_TRACE)
    assert (held == 10 * np.arange(1, 5)[:, None]).all()
    assert list(zip(hops["tag"], hops["k"], strict=True)) == [
        (tag, k) for tag in ("share-reduce", "share-only") for k in range(3) for _ in range(4)
    ]
    assert (hops["dst"] == (hops["src"] + 1) % 4).all()
    assert set(hops["bytes"]) == {4}
    for (tag, _), step in hops.groupby(["tag", "k"], sort=False):
        assert (held[step["src"], step["chunk"]] == step["value"]).all(), "a message leaves with what is shown there"
        before = held[step["dst"], step["chunk"]] if tag == "share-reduce" else 0
        assert (step["after"] == step["value"] + before).all()
        held[step["dst"], step["chunk"]] = step["after"]
    assert (held == 100).all()


@pytest.mark.slow
@pytest.mark.end_to_end
def test_a_recorded_trace_has_the_messages_of_the_kept_one(tmp_path: Path) -> None:
    record(tmp_path / "trace.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.csv"], "no temporary file is left"
    (first, hops), (kept, kept_hops) = load(tmp_path / "trace.csv"), load(KEPT / RING_TRACE)
    assert (first == kept).all()
    shown, kept_shown = (
        one.drop(columns="received_us").sort_values(["tag", "k", "src"], ignore_index=True) for one in (hops, kept_hops)
    )
    pd.testing.assert_frame_equal(shown, kept_shown)


@pytest.mark.slow
@pytest.mark.end_to_end
def test_the_animation(tmp_path: Path) -> None:
    path = tmp_path / "ring.gif"
    animate(KEPT / RING_TRACE, path, between=1)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_size < 1_500_000
    with Image.open(path) as picture:
        assert picture.format == "GIF"
        assert picture.n_frames >= 6 * 4  # type: ignore[attr-defined]
        assert picture.info["loop"] == 0, "for ever"


@pytest.mark.parametrize("damage", ["empty", "foreign", "torn row", "torn between rows", "other value", "missing"])
def test_what_is_not_a_whole_trace_gets_one_line(tmp_path: Path, damage: str) -> None:
    text = (KEPT / RING_TRACE).read_text()
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
    with pytest.raises((UsageError, OSError), match=r"^.*damaged\.csv.*\Z"):
        animate(path, tmp_path / "out.gif", between=1)
    assert not list(tmp_path.glob("*.gif"))
