"""Nothing hangs, nothing leaks: runs of train.py, hit at a chosen or a random moment. See also `test_hit_ranks.py`."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.core.launchers.conftest import Victim
from tests.core.launchers.engines import NEEDS_DASK
from tests.ranks import LIMIT, wait_until
from tests.runs import ROOT

TIMEOUT_S = 10  # --timeout of the runs of which a rank is stopped
CASES = ["ring_all_reduce", "param_server"]
Start = Callable[..., Victim]
pytestmark = pytest.mark.slow


def test_ctrl_c_in_the_first_moments_is_one_line(start: Start) -> None:
    victim = start("param_server")
    maps = Path(f"/proc/{victim.process.pid}/maps")  # past the interpreter's own start when it loads torch
    assert wait_until(lambda: "libtorch" in maps.read_text())
    os.killpg(victim.process.pid, signal.SIGINT)
    assert "ended by SIGINT" in victim.check_end()


def _with_dask(number: signal.Signals, how_often: pytest.MarkDecorator) -> Any:
    return pytest.param("dask", number, marks=[*NEEDS_DASK, how_often])


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("local", signal.SIGINT),
        pytest.param("local", signal.SIGKILL, marks=pytest.mark.end_to_end),
        pytest.param("local", signal.SIGTERM, marks=pytest.mark.exhaustive),
        _with_dask(signal.SIGINT, pytest.mark.end_to_end),
        _with_dask(signal.SIGKILL, pytest.mark.exhaustive),
    ],
)
def test_a_run_of_which_the_launcher_is_hit_ends(start: Start, launcher: str, number: signal.Signals) -> None:
    victim = start("param_server", "--launcher", launcher)
    victim.wait_until("training")
    if number == signal.SIGINT:
        os.killpg(victim.process.pid, number)  # as the terminal does
    else:
        victim.process.send_signal(number)
    said = victim.check_end()
    if number == signal.SIGKILL:
        assert victim.process.returncode == -number
    else:
        assert f"ended by {number.name}" in said
        assert victim.process.returncode == 128 + number


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


def test_an_interrupt_amid_an_import_cannot_be_lost(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text(INTERRUPTED)
    command = [sys.executable, str(ROOT / "train.py"), "--strategy", "single"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 130
    assert done.stderr.startswith("\nerror: ended by SIGINT; nothing was written\n")  # triton may tell what it leaks
    assert list(tmp_path.glob("pymp-*")) == []


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.chaos if seed < 10 else pytest.mark.exhaustive) for seed in range(50)],
)
def test_chaos(start: Start, seed: int) -> None:
    """Hit any process of the run with any signal, at any moment."""
    chance = random.Random(seed)
    victim = start(chance.choice(CASES), "--timeout", str(TIMEOUT_S))
    target = chance.choice(["launcher", "launcher", 0, 1, 2])
    number = chance.choice(
        [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] if target == "launcher" else [signal.SIGKILL, signal.SIGSTOP]
    )
    delay = chance.uniform(0, 6)
    time.sleep(delay)
    if isinstance(target, int):
        victim.wait_until("started")[target].send_signal(number)
    else:
        victim.process.send_signal(number)
    said = victim.check_end()
    if isinstance(target, int):
        assert f"rank {target} (" in said, (delay, number, said)
