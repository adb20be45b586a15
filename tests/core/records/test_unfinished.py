"""What a killed run has left is known as unfinished by every reader, and the next run removes it."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoints import replay
from gradwire.core.records.errors import UsageError
from gradwire.core.records.files import write_run
from gradwire.core.records.unfinished import SUFFIXES, check_name, folder_of, run_lock
from gradwire.pictures import compare, staleness, timeline
from gradwire.results import load_events, load_metadata, load_table
from tests.pictures.samples import METADATA, parameter_server_events, parameter_server_table


def killed_after(directory: Path, n_renamed: int) -> None:
    """Write the records of a run in a process that is killed when so many files have their names."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return
    try:
        replace, left = os.replace, n_renamed

        def and_die(old: Any, new: Any) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            replace(old, new)

        with run_lock(directory, "run"):
            os.replace = os.rename = and_die  # type: ignore[assignment]
            write_run(directory, "run", parameter_server_events(), parameter_server_table(), METADATA)
    finally:
        os._exit(1)


READERS: dict[str, Callable[[Path], Any]] = {".events.csv.gz": load_events, ".csv": load_table, ".json": load_metadata}


@pytest.mark.parametrize("n_renamed", [1, 2])
def test_of_torn_records_every_reader_says_so_in_one_line(
    tmp_path: Path, n_renamed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_after(tmp_path, n_renamed)
    there = [suffix for suffix in SUFFIXES if (tmp_path / f"run{suffix}").exists()]
    assert len(there) == n_renamed
    for suffix in there:
        with pytest.raises(ValueError, match=r"^unfinished: "):
            READERS[suffix](tmp_path / f"run{suffix}")
    commands = [(timeline.main, "run"), (staleness.main, "run")]
    if ".csv" in there:
        commands.append((compare.main, "run.csv"))
    for command, name in commands:
        assert command([str(tmp_path / name)]) == 2
        assert "unfinished" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(UsageError, match="unfinished"):
        replay.load(str(tmp_path / "run"))


def test_records_that_have_all_their_names_are_kept(tmp_path: Path) -> None:
    killed_after(tmp_path, 3)
    assert folder_of(tmp_path, "run").exists(), "it was killed before it removed the folder"
    assert len(load_table(tmp_path / "run.csv"))
    with pytest.raises(UsageError, match="exists already"):
        check_name(tmp_path, "run")
    with run_lock(tmp_path, "other"):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted(f"run{suffix}" for suffix in SUFFIXES)
    load_metadata(tmp_path / "run.json")


@pytest.mark.parametrize("name", ["run", "other"])
def test_the_next_run_removes_what_a_killed_one_has_left(tmp_path: Path, name: str) -> None:
    killed_after(tmp_path, 2)
    (tmp_path / "third.csv").write_text("of another run")
    check_name(tmp_path, name)
    with run_lock(tmp_path, name) as folder:
        assert folder == folder_of(tmp_path, name)
        assert sorted(os.listdir(tmp_path)) == [folder.name, "third.csv"]
    assert os.listdir(tmp_path) == ["third.csv"]


def test_a_run_leaves_the_next_one_of_its_name_alone(tmp_path: Path) -> None:
    with ExitStack() as second:
        with run_lock(tmp_path, "run"):
            write_run(tmp_path, "run", parameter_server_events(), parameter_server_table(), METADATA)
            for suffix in SUFFIXES:
                (tmp_path / f"run{suffix}").unlink()
            folder = second.enter_context(run_lock(tmp_path, "run"))
        assert folder.exists()
    assert os.listdir(tmp_path) == []
