"""What the kernel forbids to code that nobody has read, on root too."""

import subprocess
import sys
from pathlib import Path

import pytest

from lessons.sandbox import landlock_version
from tests.ranks import LIMIT
from tests.runs import ROOT

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are of Linux")
LANDLOCK = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
BEGIN = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from lessons.sandbox import forbid_files, forbid_processes

def outcome(call):
    try:
        call()
        return "done"
    except PermissionError:
        return "refused"

folder = Path(sys.argv[1])
"""


def said(script: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", BEGIN + script, str(folder)]
    return subprocess.check_output(command, cwd=ROOT, text=True, timeout=LIMIT).splitlines()


@LINUX
def test_no_process_is_started_and_no_other_is_signalled(tmp_path: Path) -> None:
    script = """
found = []
assert forbid_processes()
calls = [os.fork, lambda: subprocess.run(["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {}),
         lambda: os.kill(os.getppid(), 0), lambda: os.kill(0, 0), lambda: os.kill(-1, 0),
         lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)]
print(*map(outcome, calls))
thread = threading.Thread(target=lambda: found.append(outcome(os.fork)))
thread.start()
thread.join()
print(*found, outcome(lambda: os.kill(os.getpid(), 0)), outcome(lambda: signal.raise_signal(0)))
"""
    assert said(script, tmp_path) == [" ".join(["refused"] * 7), "refused done done"]


@LINUX
def test_threads_that_were_there_are_bound_too(tmp_path: Path) -> None:
    script = """
begin, found = threading.Event(), []
thread = threading.Thread(target=lambda: (begin.wait(), found.append(outcome(os.fork))))
thread.start()
assert forbid_processes()
begin.set()
thread.join()
print(*found)
"""
    assert said(script, tmp_path) == ["refused"]


@LINUX
@LANDLOCK
def test_only_files_that_are_shown_are_read_and_only_writable_ones_are_changed(tmp_path: Path) -> None:
    for name in ("mine", "hidden"):
        (tmp_path / name).mkdir()
    for name in ("hidden/other", "hidden/own", "open"):
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "hidden")
    script = """
os.chdir(folder)
forbid_files([folder / "hidden"], [folder / "hidden" / "own"], [folder / "mine"])
print(*[outcome(lambda: Path(one).read_text()) for one in ("hidden/other", "link/other", "hidden/own", "open")])
calls = [lambda: Path("open").write_text("x"), lambda: Path("new").write_text("x"), lambda: Path("open").unlink(),
         lambda: Path("open").rename("hidden/new"), lambda: Path("hidden/new").write_text("x"),
         lambda: open(f"/proc/{os.getppid()}/mem", "rb")]
print(*map(outcome, calls))
Path("mine/new").write_text("x")
Path("mine/new").rename("mine/newer")
sys.stdout.flush()
print(os.wait()[1] if os.fork() else outcome(lambda: Path("hidden/other").read_text()))
"""
    found = said(script, tmp_path)
    assert found[:2] == ["refused refused done done", " ".join(["refused"] * 6)]
    assert sorted(found[2:]) == ["0", "refused"], "what it starts is bound, too"
    assert (tmp_path / "mine" / "newer").read_text() == "x"
    assert (tmp_path / "open").read_text() == ""


@LINUX
def test_what_starts_too_many_processes_is_ended_with_all_of_them(tmp_path: Path) -> None:
    script = """
from lessons.contained import Contained, adopt_orphans, below, end_below

def call():
    for _ in range(80):
        if not os.fork():
            os.setsid()
            time.sleep(1000)
    time.sleep(1000)

adopt_orphans()
contained = Contained(call, lambda: None, 1000, 4000, 64)
while not contained.has_ended():
    time.sleep(0.01)
end_below()
print(contained.exceeded, below(os.getpid()))
"""
    assert said(script, tmp_path) == ["started more than 64 processes and threads []"]
