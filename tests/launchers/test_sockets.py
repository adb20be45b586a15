"""The folder of the sockets: short enough for them, and removed whatever became of its launcher."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from launchers import sockets


def test_folders_of_launchers_that_are_gone_are_removed_and_no_others(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("pymp-gone", "pymp-living", "pymp-foreign", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "listener-1").touch()
    for folder in (*folders[:2], folders[3]):
        (folder / "launcher").touch()
    with open(folders[1] / "launcher") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sockets._remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(folders[1:])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "link", "file of another user"])
def test_what_is_no_regular_file_of_ones_own_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (folder := tmp_path / "pymp-x").mkdir()
    lock = folder / "launcher"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "link":
        (tmp_path / "mine").touch()
        lock.symlink_to(tmp_path / "mine")
    else:
        lock.touch()
        monkeypatch.setattr(os, "getuid", lambda: lock.stat().st_uid + 1)
    sockets._remove_abandoned(tmp_path)
    assert list(folder.iterdir()) == [lock]


def test_this_launcher_holds_its_folder() -> None:
    lock = Path(sockets.claim_folder().name).with_name("launcher")
    with open(lock) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_folder_is_where_a_socket_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sockets._parent() == tempfile.gettempdir()
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert sockets._parent() == "/tmp"
