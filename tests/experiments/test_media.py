"""The pictures of recorded runs: the memory of four strategies, and the ring, of which only a whole trace is drawn."""

from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from experiments.cases import RING_TRACE
from experiments.grid import KEPT
from gradwire.core.records.errors import UsageError
from media import draw_memory
from media.draw_ring import animate, load, record

MEMORY = draw_memory.load()


@pytest.mark.exhaustive
def test_the_memory_that_is_kept_is_measured_again() -> None:
    name = "fully_sharded (ZeRO-3)"
    both = []
    for changes in (draw_memory.measure(name), MEMORY[MEMORY["strategy"] == name]):
        before = changes["phase"] == ""  # what there was before the step has no order
        both.append(pd.concat([changes[before].sort_values("kind"), changes[~before]], ignore_index=True))
    pd.testing.assert_frame_equal(*both)


@pytest.mark.end_to_end
def test_a_recorded_trace_has_the_messages_of_the_kept_one_and_is_animated(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.csv", tmp_path / "ring.gif"
    record(trace)
    both = [load(path) for path in (trace, KEPT / RING_TRACE)]
    assert (both[0][0] == both[1][0]).all()
    shown = [hops.drop(columns="received_us").sort_values(["tag", "k", "src"], ignore_index=True) for _, hops in both]
    pd.testing.assert_frame_equal(*shown)
    animate(trace, picture, between=1)
    assert {*tmp_path.iterdir()} == {trace, picture}, "no temporary file is left"
    assert picture.stat().st_size < 1_500_000
    with Image.open(picture) as opened:
        assert (opened.format, opened.info["loop"]) == ("GIF", 0)
        assert opened.n_frames >= 6 * 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", ["empty", "foreign", "torn row", "torn between rows", "other value", "missing"])
def test_what_is_not_a_whole_trace_gets_one_line(tmp_path: Path, damage: str) -> None:
    text = (KEPT / RING_TRACE).read_text()
    damaged = {
        "empty": "", "foreign": "rank,seconds\n0,1.5\n1,2.5\n", "torn row": text[: len(text) // 2],
        "torn between rows": text[: text.rindex("\n3,", 0, text.rindex(",recv,")) + 1],
        "other value": text.replace("100.0", "99.0", 1),
    }  # fmt: skip
    path = tmp_path / "damaged.csv"
    if damage in damaged:
        path.write_text(damaged[damage])
    with pytest.raises((UsageError, OSError), match=r"^.*damaged\.csv.*\Z"):
        animate(path, tmp_path / "out.gif", between=1)
    assert not list(tmp_path.glob("*.gif"))
