"""The files of a run: written atomically, and read as they were written."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gradwire.core.records.atomic import check_output, check_writable, write_atomically
from gradwire.core.records.files import write_run
from gradwire.core.records.machine import git_commit
from gradwire.results import load_events, load_metadata, load_table
from tests.disk import note_disk
from tests.pictures.samples import METADATA, parameter_server_events, parameter_server_table, unrecorded_table


def test_run_round_trip(tmp_path: Path) -> None:
    events, table = parameter_server_events(), parameter_server_table()
    paths = write_run(tmp_path, "run.1", events, table, METADATA | {"loss": float("nan"), "where": tmp_path})
    assert sorted(os.listdir(tmp_path)) == ["run.1.csv", "run.1.events.csv.gz", "run.1.json"]
    start = events["t0"].min()
    expected = events.assign(t0=events["t0"] - start, t1=events["t1"] - start)
    for path in (paths["events"], tmp_path / "run.1"):
        loaded = load_events(path)
        pd.testing.assert_frame_equal(loaded, expected, rtol=0, atol=1e-8)
        assert (loaded["tag"] == events["tag"]).all()
        assert loaded["t0"].min() == 0.0
    pd.testing.assert_frame_equal(load_table(paths["table"]), table, check_exact=True)
    (none := unrecorded_table().assign(strategy="none")).to_csv(tmp_path / "none.csv", index=False)
    pd.testing.assert_frame_equal(load_table(tmp_path / "none.csv"), none)
    read = load_metadata(paths["metadata"])
    assert read == {**METADATA, "parameter_hash": {"0": "ab"}, "loss": None, "where": str(tmp_path)}


def written(folder: Path, model: Path) -> dict[str, Path]:
    others = {str(model): b"model"}
    return write_run(folder, "run", parameter_server_events(), parameter_server_table(), METADATA, others)


NAMES = ("run.csv", "run.json", "run.events.csv.gz", "model.pt")
WRITE, RENAME = (Path, "write_bytes"), (os, "replace")


ERRORS = {NAMES[:1]: OSError("no more"), NAMES: KeyboardInterrupt("no more"), (): OSError("no more")}


@pytest.mark.parametrize(("there", "error"), ERRORS.items())
@pytest.mark.parametrize(("where", "n_done"), [(WRITE, 1), *((RENAME, n) for n in (0, 1, 3))])
def test_if_one_file_cannot_be_written_or_named_all_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], where: tuple[Any, str], n_done: int,
    error: BaseException,
) -> None:  # fmt: skip
    act, left = getattr(*where), n_done

    def fail_once(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise error
        act(*args)

    for name in there:
        (tmp_path / name).write_text("older")
    monkeypatch.setattr(*where, fail_once)
    with pytest.raises(type(error), match="no more"):
        written(tmp_path, tmp_path / "model.pt")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(there, "older")


def test_records_are_on_the_disk_before_and_after_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = note_disk(monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    model = tmp_path / "elsewhere" / "model.pt"
    paths = written(tmp_path, model)
    names = [str(model), *map(str, paths.values())]  # the records last: then nothing is missing
    renames = [i for i, (what, _) in enumerate(done) if what == "rename"]
    assert [done[i][1] for i in renames] == names
    before, after = done[: renames[0]], done[renames[-1] + 1 :]
    synced = {Path(path).name.removeprefix(f".{os.getpid()}.") for _, path in before}
    assert synced == {*(Path(name).name for name in names), tmp_path.name}
    assert before[0] == ("sync", str(tmp_path)), "by which the files are known as unfinished"
    assert {path for _, path in after} == {str(tmp_path), str(model.parent)}
    assert renames == list(range(renames[0], renames[-1] + 1))


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, said in (
        (tmp_path / "pipe", "it is no file"), (tmp_path, f"Is a directory: '{tmp_path}'$"),
        (tmp_path / ("a" * 255), "long"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=said):
            check_output(path)
        with pytest.raises(OSError, match=said), write_atomically(path) as temporary:
            temporary.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    check_output(tmp_path / "folder" / "new")


def test_where_nothing_can_be_written_is_told(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "results")
    assert os.listdir(tmp_path / "new" / "results") == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        check_writable(tmp_path / "file" / "results")


def test_git_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", "-C", str(tmp_path), *identity, *arguments], text=True).strip()

    assert git_commit(tmp_path) is None
    git("init", "-q")
    assert git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    git("tag", "-am", "v1", "v1")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"
