"""A recorder keeps little in memory: the events are in its file, and come back from there as they were."""

from pathlib import Path

import pandas as pd
import pytest

from gradwire.core.records import events as events_module
from gradwire.core.records import recorder as recorder_module
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.events import RunEvents, chunks
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import epoch_table


def steps(recorder: Recorder, n: int) -> None:
    """Record `n` steps of five events."""
    for i in range(n):
        recorder.step = i
        recorder.add("forward", i, i + 0.5)
        recorder.add("communicate", i, i + 0.5, "send", 1, "gradient", 100)
        recorder.add("wait", i, i + 0.5, peer=1, tag="parameters")
        recorder.add("communicate", i, i + 0.5, "recv", 1, "parameters", 50)
        recorder.add("update", i, i + 0.5, peer=1, version_read=i, version_applied=i + i % 3)


@pytest.mark.parametrize("named", [True, False])
def test_events_come_back_as_they_were_from_a_file_and_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    expected, recorder = Recorder(3), Recorder(3)
    monkeypatch.setattr(events_module, "_CHUNK", 64)
    for each in (expected, recorder):
        steps(each, 20)
        monkeypatch.setattr(recorder_module, "_BUFFERED", 100)  # some of what comes is in the file, some in memory
        if each is recorder and named:
            recorder.write_to(tmp_path / "rank-3.events")
        each.mark("samples", 7.0)
        steps(each, 20)
        monkeypatch.undo()
        monkeypatch.setattr(events_module, "_CHUNK", 64)
    frame = expected.frame()
    pd.testing.assert_frame_equal(recorder.frame().drop(columns=["t0", "t1"]), frame.drop(columns=["t0", "t1"]))
    recorder.add("data", 0.0, 1.0)
    assert len(recorder.frame()) == len(frame) + 1 == 202
    if named:
        file = recorder.close()
        for carried in (file, file.carry()):
            pieces = list(chunks(RunEvents([carried])))
            assert [len(piece) for piece in pieces] == [64, 64, 64, 10]
            assert pd.concat(pieces)["phase"].tolist() == [*frame["phase"], "data"]


def test_the_epoch_table_is_the_same_from_chunks() -> None:
    recorder = Recorder(0)
    for epoch in (1, 2):
        recorder.epoch = epoch
        steps(recorder, 6)
        recorder.mark("epoch_s", 3.0)
    frame = recorder.frame()
    whole = epoch_table(frame, "ring", 1, ["worker"])
    for size in (7, 40):
        pieces = [frame[start : start + size] for start in range(0, len(frame), size)]
        pd.testing.assert_frame_equal(epoch_table(pieces, "ring", 1, ["worker"]), whole)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match=r"cannot write the events of the run to .*nowhere.*: No such file"):
        Recorder().write_to(tmp_path / "nowhere" / "rank-0.events")
    if Path("/dev/full").exists():
        monkeypatch.setattr(recorder_module, "_BUFFERED", 1)
        recorder = Recorder()
        recorder.write_to(Path("/dev/full"))
        with pytest.raises(RunFailed, match=r"/dev/full: No space left on device"):
            recorder.add("data", 0.0, 1.0)
