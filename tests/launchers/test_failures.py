"""Nothing hangs, nothing leaks: runs of train.py, hit at a chosen or a random moment. See also `test_hit_ranks.py`."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from records.unfinished import claimed
from tests.ranks import LIMIT, left_in_shared_memory, wait_until

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 10  # --timeout of the runs of which a rank is stopped
CASES = ["ring_all_reduce", "param_server"]


class Victim:
    """A run of train.py with 3 ranks that would last for hours, in its own session."""

    def __init__(self, folder: Path, strategy: str, *options: str, script: str = "train.py") -> None:
        self.left_by_others = left_in_shared_memory()
        self.results = folder / "results"
        self.errors = folder / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, script, "--strategy", strategy, "--n_gpus", "3", "--epochs", "100000",
                 "--device", "cpu", "--timeout", str(LIMIT), "--results_dir", str(self.results), *options],
                cwd=ROOT, stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        """All that live in the session of the run."""
        alive = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return alive

    def ranks(self) -> list[psutil.Process]:
        """The processes of the ranks, in rank order: children of the launcher's child, the fork server."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
            ranks = [child for child in children if child.ppid() != self.process.pid]
        except psutil.NoSuchProcess:
            return []
        largest = int(Path("/proc/sys/kernel/pid_max").read_text())  # the system gives them in turn, and begins again
        return sorted(ranks, key=lambda rank: (rank.pid - self.process.pid) % largest)

    def wait_until(self, what: str) -> list[psutil.Process]:
        """Wait until the ranks are "started" or "training"; return them."""

        def is_so() -> bool:
            trains = what == "started" or re.search(r"\| [1-9]\d*/", self.said())
            return bool(trains and len(self.ranks()) == 3) or self.process.poll() is not None

        wait_until(is_so)
        ranks = self.ranks()
        assert len(ranks) == 3, f"the run was never {what}: {self.said()}"
        return ranks

    def loads_torch(self) -> bool:
        """Whether the launcher has begun to import torch, and so is past the interpreter's own start."""
        return "libtorch" in Path(f"/proc/{self.process.pid}/maps").read_text()

    def said(self) -> str:
        return self.errors.read_text(errors="replace")

    def check_end(self) -> str:
        """Check that the run ends and leaves nothing; return what it said after its progress bar."""
        assert self.process.wait(LIMIT) != 0
        assert wait_until(lambda: self.processes() == []), self.processes()
        if self.process.returncode == -signal.SIGKILL and self.results.exists():
            with claimed(self.results, "next"):
                pass  # the next run removes what the killed one has left
        assert not self.results.exists() or list(self.results.iterdir()) == []
        assert wait_until(lambda: left_in_shared_memory() <= self.left_by_others), left_in_shared_memory()
        said = self.said()
        assert "Traceback" not in said
        assert said.count("error:") <= 1, said
        return said[said.find("error:") :] if "error:" in said else ""

    def kill(self) -> None:
        for process in self.processes():
            process.kill()


@pytest.fixture
def victims() -> Iterator[list[Victim]]:
    started: list[Victim] = []
    yield started
    for victim in started:
        victim.kill()


@pytest.mark.slow
def test_a_rank_killed_while_it_evaluates_is_what_the_others_waited_for(tmp_path: Path, victims: list[Victim]) -> None:
    victims.append(victim := Victim(tmp_path, "param_server", "--batch_size", "5000",
                                   "--model", "tests.workload:slow_to_evaluate"))  # fmt: skip
    victim.wait_until("training")[0].kill()  # an epoch is one step, its evaluation takes a minute
    said = victim.check_end()
    assert "error: rank 0 (server) was killed by SIGKILL" in said
    assert "rank 1 (worker) waited for 'evaluated' from rank 0" in said


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train.py", pytest.param("param_server_builtin.py", marks=pytest.mark.exhaustive)])
def test_ctrl_c_in_the_first_moments_is_one_line(tmp_path: Path, victims: list[Victim], script: str) -> None:
    strategy = "param_server" if script == "train.py" else script.removesuffix(".py")
    victims.append(victim := Victim(tmp_path, strategy, script=script))
    assert wait_until(victim.loads_torch)
    os.killpg(victim.process.pid, signal.SIGINT)
    assert "ended by SIGINT" in victim.check_end()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.end_to_end)])
def test_an_interrupted_run_ends(tmp_path: Path, victims: list[Victim], number: signal.Signals) -> None:
    victims.append(victim := Victim(tmp_path, "ring_all_reduce"))
    victim.wait_until("training")
    if number == signal.SIGINT:
        os.killpg(victim.process.pid, number)  # as the terminal does
    else:
        victim.process.send_signal(number)
    assert f"ended by {number.name}" in victim.check_end()
    assert victim.process.returncode == 128 + number


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path, victims: list[Victim]) -> None:
    victims.append(victim := Victim(tmp_path, "param_server"))
    victim.wait_until("training")
    victim.process.kill()
    victim.check_end()


INTERRUPTED = """
import os, signal, sys
if sys.argv[0].endswith("train.py"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # lost, as in a destructor
sys.path.remove(os.path.dirname(__file__))
del sys.modules["tyro"]
import tyro  # the real one
"""


@pytest.mark.slow
def test_an_interrupt_amid_an_import_cannot_be_lost(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text(INTERRUPTED)
    command = [sys.executable, str(ROOT / "train.py"), "--strategy", "single"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert (done.returncode, done.stderr) == (130, "\nerror: ended by SIGINT; nothing was written\n")
    assert list(tmp_path.glob("pymp-*")) == []


@pytest.mark.slow
@pytest.mark.end_to_end
def test_twenty_kills_in_a_row_do_not_stop_the_server(tmp_path: Path, victims: list[Victim]) -> None:
    options = ("--restarts", "20", "--lr", "0.001", "--model", "tests.workload:batch_norm")
    victims.append(victim := Victim(tmp_path, "async_param_server", *options, "--dataset", "tests.workload:moons"))
    server = victim.wait_until("training")[0]
    chance = random.Random(0)
    killed = {server.pid}

    def alive() -> list[psutil.Process]:
        return [rank for rank in victim.ranks() if rank.pid not in killed]

    while len(killed) < 1 + 20:
        assert wait_until(lambda: bool(alive()), LIMIT), victim.said()
        time.sleep(chance.uniform(0, 0.5))  # at any moment of its life
        assert victim.process.poll() is None, victim.said()
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it may have ended by itself
            one = chance.choice(alive())
            one.kill()
            killed.add(one.pid)

    def steps() -> int:
        return int((re.findall(r"\| (\d+)/", victim.said()) or [0])[-1])

    before = steps()
    assert wait_until(lambda: steps() > before, LIMIT), "the server continues"
    victim.process.terminate()
    assert "ended by SIGTERM" in victim.check_end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.chaos if seed < 12 else pytest.mark.exhaustive) for seed in range(50)],
)
def test_chaos(tmp_path: Path, victims: list[Victim], seed: int) -> None:
    """Hit any process of the run with any signal, at any moment."""
    chance = random.Random(seed)
    victims.append(victim := Victim(tmp_path, chance.choice(CASES), "--timeout", str(TIMEOUT_S)))
    target = chance.choice(["launcher", "launcher", 0, 1, 2])
    number = chance.choice(
        [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] if target == "launcher" else [signal.SIGKILL, signal.SIGSTOP]
    )
    delay = chance.uniform(0, 8)
    time.sleep(delay)
    if isinstance(target, int):
        victim.wait_until("started")[target].send_signal(number)
    else:
        victim.process.send_signal(number)
    said = victim.check_end()
    if isinstance(target, int):
        assert f"rank {target} (" in said, (delay, number, said)
