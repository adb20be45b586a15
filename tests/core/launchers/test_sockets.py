"""The folder of the sockets: short enough for them, and removed whatever became of its launcher."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from gradwire.core.launchers import sockets


@pytest.mark.timeout(60)  # who opens a pipe waits for ever
def test_folders_of_launchers_that_are_gone_are_removed_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("pymp-gone", "pymp-living", "pymp-foreign", "pymp-pipe", "pymp-link", "other")
    gone, living, foreign, pipe, link, other = folders = [tmp_path / name for name in names]
    for folder in folders:
        folder.mkdir()
        (folder / "listener-1").touch()
    for folder in (gone, living, other):
        (folder / "launcher").touch()
    os.mkfifo(pipe / "launcher")
    (link / "launcher").symlink_to(other / "launcher")
    with open(living / "launcher") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
            sockets._remove_abandoned(tmp_path)
        assert gone.exists(), "it is another user's"
        sockets._remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, foreign, pipe, link, other])


def test_this_launcher_holds_its_folder() -> None:
    lock = Path(sockets.claim_folder().name).with_name("launcher")
    with open(lock) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_folder_is_where_a_socket_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sockets._parent() == tempfile.gettempdir()
    (long := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert sockets._parent() == "/tmp"
