"""A fork server that is stopped or killed: the launcher ends with one line, and leaves nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from gradwire.core.launchers import fork_server
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from tests.ranks import launch, wait_until
from tests.runs import ROOT

LIMIT_S = 100
Start = Callable[[], psutil.Process]


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Gives a function that starts a fork server of this test's own, which loads nothing, and returns its process."""
    own = forkserver.ForkServer()
    monkeypatch.setattr(forkserver, "_forkserver", own)
    for name in ("ensure_running", "connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(own, name))
    monkeypatch.setattr(fork_server, "_PRELOADED", [])

    def start() -> psutil.Process:
        fork_server.warm_up()
        return psutil.Process(own._forkserver_pid)  # type: ignore[attr-defined]

    return start


def get_rank(transport: Transport) -> int:
    return transport.rank


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("timeout", "happens", "error", "told"),
    [
        (0.5, lambda server: None, RunFailed, "did not answer"),
        (600.0, lambda server: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt, ""),
        (600.0, psutil.Process.kill, RunFailed, "was killed by SIGKILL"),
    ],
    ids=["nothing happens", "Ctrl-C", "it is killed"],
)
def test_one_that_is_stopped_is_given_up_unless_something_happens_before(
    server: Start, monkeypatch: pytest.MonkeyPatch, timeout: float, happens: Callable[[psutil.Process], None],
    error: type[BaseException], told: str,
) -> None:  # fmt: skip
    for name in ("_LEAST_PATIENCE_S", "_INTERRUPTED_S"):
        monkeypatch.setattr(fork_server, name, 0.5)
    stopped = server()
    stopped.suspend()
    # A rank has been asked for, and waits for the fork server's first answer: from Python 3.14 on a challenge.
    where, name = (connection, "answer_challenge") if sys.version_info >= (3, 14) else (forkserver, "read_signed")
    wait = getattr(where, name)

    def happens_first(*args: Any) -> Any:
        happens(stopped)
        return wait(*args)

    monkeypatch.setattr(where, name, happens_first)
    with pytest.raises(error) as caught:
        launch(get_rank, 2, timeout=timeout)
    assert error is KeyboardInterrupt or f"the fork server, from which they are made, {told}" in one_line(caught)
    assert wait_until(lambda: is_gone(stopped), LIMIT_S)


LAUNCHER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from functools import partial
from multiprocessing import forkserver
from gradwire.core.launchers import fork_server
fork_server._PRELOADED[:] = []
fork_server.warm_up()
print(forkserver._forkserver._forkserver_pid, flush=True)
time.sleep(600)
"""


def test_a_stopped_one_does_not_outlive_its_launcher_wherever_that_was_started(tmp_path: Path) -> None:
    line = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        stopped = psutil.Process(int(launcher.stdout.readline()))
        try:
            maps = Path(f"/proc/{stopped.pid}/maps")  # ctypes is what it tells the kernel with
            assert wait_until(lambda: "_ctypes" in maps.read_text(), LIMIT_S)
            assert wait_until(lambda: stopped.status() == psutil.STATUS_SLEEPING, LIMIT_S)
            stopped.suspend()
        finally:
            launcher.kill()
        try:
            assert wait_until(lambda: is_gone(stopped), LIMIT_S)
        finally:
            if not is_gone(stopped):
                stopped.kill()
