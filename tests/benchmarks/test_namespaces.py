"""Namespaces of the kernel: the ranks in them reach each other, and nothing of a run is left."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.namespaces import namespaces
from gradwire.core.records.errors import RunFailed, UsageError
from tests.ranks import LIMIT, wait_until
from tests.runs import ROOT

needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="needs root, ip, tc and nft")
pytestmark = pytest.mark.xdist_group("namespaces")  # a machine has one set of them

SEND = """
import socket, sys
rank, server = int(sys.argv[1]), (sys.argv[2], 5000)
if rank == 0:
    peer, _ = socket.create_server(server).accept()
    print(len(peer.makefile("rb").read()))
else:
    while True:
        try:
            socket.create_connection(server).sendall(bytes(1_000_000))
            break
        except ConnectionRefusedError:
            pass
"""
SLEEP = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} '); time.sleep(1e6)"
RUN = """
import sys
from benchmarks.namespaces import namespaces
with namespaces(1) as ranks:
    ranks.run([sys.argv[1:]], 1e6)
"""


def left() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith("gradwire-")]


@needs_root
def test_ranks_reach_each_other_through_shaped_links() -> None:
    with namespaces(2) as ranks:
        ranks.shape(1e9)
        commands = [[sys.executable, "-c", SEND, str(rank), ranks.address(0)] for rank in range(2)]
        assert ranks.run(commands, LIMIT) == ["1000000\n", ""]
    assert left() == []


@needs_root
def test_a_rank_that_fails_ends_all() -> None:
    commands = [[sys.executable, "-c", code] for code in ("import time; time.sleep(1e6)", "raise SystemExit('broken')")]
    with pytest.raises(RunFailed, match=r"rank 1 ended with exit code 1:\nbroken"), namespaces(2) as ranks:
        ranks.run(commands, LIMIT)
    assert left() == []


@needs_root
def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    said = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", RUN, sys.executable, "-c", SLEEP, str(said)], cwd=ROOT)
    assert wait_until(lambda: said.exists() and said.read_text().endswith(" "))
    with pytest.raises(UsageError, match="another run has the network namespaces"), namespaces(1):
        pass
    run.send_signal(signal.SIGKILL)
    run.wait()
    assert left()
    with namespaces(1):
        assert wait_until(lambda: not psutil.pid_exists(int(said.read_text())))
    assert left() == []


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        UsageError, match=r"^network namespaces need root, .*: run as root, install iproute2 and nftables$"
    ):
        namespaces(1).__enter__()
