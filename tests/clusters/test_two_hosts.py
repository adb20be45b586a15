"""A run over two hosts, as `docs/clusters.md` says it: two network namespaces of this machine, each with a name, a
network card and a clock of its own.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.results import load_events, load_metadata
from tests.ranks import LIMIT
from tests.runs import ROOT, SMALL_ARGUMENTS, made

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
AHEAD = {"A": 0, "B": 5000}  # seconds by which the clocks of the hosts are ahead of this machine's
PORT = 29400
COMMAND = (
    sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
    "--rdzv-endpoint", f"hostA:{PORT}", "--rdzv-id", "7", "train.py",
)  # fmt: skip


class Hosts:
    """Two hosts on one cable, by the names A and B; their files are this machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {host: f"h{host}-{os.getpid()}" for host in AHEAD}
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 hostA\n10.77.0.2 hostB\n")

    def connect(self) -> None:
        """Make them. Raises CalledProcessError, FileNotFoundError."""
        first, second = self.names.values()
        lines = [f"netns add {first}", f"netns add {second}",
                 f"link add cardA netns {first} type veth peer name cardB netns {second}"]  # fmt: skip
        for number, (host, name) in enumerate(self.names.items(), start=1):
            lines += [f"-n {name} addr add 10.77.0.{number}/24 dev card{host}", f"-n {name} link set card{host} up",
                      f"-n {name} link set lo up"]  # fmt: skip
        for line in lines:
            subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True, timeout=LIMIT)
        assert self.start("A", "true").wait(LIMIT) == 0

    def start(self, host: str, *command: str) -> "subprocess.Popen[str]":
        """Start a command on a host."""
        before = (
            f"echo host{host} > /proc/sys/kernel/hostname && mount --bind {self.folder}/hosts /etc/hosts && "
            f'GLOO_SOCKET_IFNAME=card{host} exec "$@"'
        )
        line = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "--mount", "--time", "--monotonic",
                str(AHEAD[host]), "--fork", "--kill-child", "bash", "-c", before, "bash", *command]  # fmt: skip
        with open(self.folder / f"said by {host}", "w") as said:
            process = subprocess.Popen(line, cwd=ROOT, stdout=said, stderr=said, text=True)
        self.processes.append(process)
        return process

    def said(self) -> str:
        """What the commands have printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("said by *")))

    def remove(self) -> None:
        """Take everything away."""
        for process in self.processes:
            process.kill()
            process.wait(LIMIT)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=LIMIT)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, where they may be made."""
    hosts = Hosts(tmp_path)
    try:
        hosts.connect()
    except (OSError, subprocess.CalledProcessError, AssertionError) as error:
        hosts.remove()
        pytest.skip(f"needs root, iproute2 and namespaces of network and time: {error}")
    yield hosts
    hosts.remove()


def test_a_run_over_two_hosts_is_the_run_on_one(hosts: Hosts, tmp_path: Path) -> None:
    options = ("--strategy", "param_server", "--checkpoint_every", "5", "--results_dir")
    for process in [hosts.start(host, *COMMAND, *SMALL_ARGUMENTS, *options, str(tmp_path / host)) for host in AHEAD]:
        assert process.wait(LIMIT) == 0, hosts.said()
    expected = made(tmp_path / "here", "param_server", n_gpus=4)
    facts = load_metadata(tmp_path / "A" / "run.json")
    assert facts["parameter_hash"] == expected["parameter_hash"]
    assert [facts["clocks"][str(rank)]["host"] for rank in range(4)] == ["hostA", "hostA", "hostB", "hostB"]
    for rank in range(4):
        clock, ahead = facts["clocks"][str(rank)], AHEAD["A" if rank < 2 else "B"]
        assert abs(clock["offset"] + ahead) <= clock["error"] + 1e-6
    events = load_events(tmp_path / "A" / "run.events.csv.gz")
    assert set(events["rank"]) == set(range(4))
    assert events["t1"].max() - events["t0"].min() < AHEAD["B"] / 2  # on one clock
    newest = sorted((tmp_path / "A" / "run.checkpoints").iterdir())[-1]
    assert sorted(path.name for path in newest.iterdir()) == [*(f"rank-{rank}.pt" for rank in range(4)), "run.json"]
    assert not (tmp_path / "B").exists()
