"""Virtual time against the kernel's network: the namespaces, what is calibrated, compared and drawn."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import accuracy, handling
from benchmarks.__main__ import start
from benchmarks.accuracy import CALIBRATED, Clock, compare, measure_kernel, summary
from benchmarks.namespaces import namespaces
from benchmarks.points import Point, build
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.machine import usable_cores
from gradwire.core.strategy.tensors import layout_of
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.steps import Steps
from strategies import AsyncParamServer, ParamServer, RingAllReduce
from tests.ranks import LIMIT, wait_until
from tests.runs import ROOT

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="needs root, ip, tc and nft")
pytestmark = pytest.mark.xdist_group("namespaces")  # a machine has one set of them
PHASES = {"forward": 1e-3, "backward": 2e-3, "update": 1e-4}
CLOCK = Clock({f"mlp {strategy.name}": PHASES for strategy in (RingAllReduce, ParamServer, AsyncParamServer)})
SEEN = Point(RingAllReduce(), "mlp", *CALIBRATED)


def test_without_what_a_machine_adds_a_step_takes_what_its_closed_form_says() -> None:
    for kind, n, mbit in ((ParamServer, 2, 1000), (RingAllReduce, 2, 1000), (RingAllReduce, 3, 100)):
        point = Point(kind(), "mlp", n, mbit)
        passes = 3 * (max(1, n / len(usable_cores())) - 1)  # ranks share cores
        predicted = CLOCK.predict(point)
        assert predicted is not None
        assert 1e3 * CLOCK.simulate(point, 5) == pytest.approx(predicted + passes, rel=0.01)


def test_workers_of_an_asynchronous_server_begin_in_step_and_come_to_take_turns() -> None:
    point = Point(AsyncParamServer(), "mlp", 3, 100)
    assert point.options.link
    P = 4 * layout_of(build("mlp")).n / point.options.link.bandwidth
    first, later = (CLOCK.simulate(point, steps) / P for steps in (2, 41))
    assert first > 3.5, "both send, then both receive: nearly 2 P in each direction"
    assert later < 2.3, "one sends while the other receives"


def test_the_calibration_finds_what_messages_cost_and_the_rest_is_held_out_and_drawn(tmp_path: Path) -> None:
    truth = Clock(CLOCK.phases, latency=4e-4, copying=2e-9)
    points = SEEN, Point(AsyncParamServer(), "mlp", 3, 100)
    rows = list(compare(CLOCK, [(point, 3, truth.simulate(point, 3), [1.0]) for point in points]))
    assert [row["held_out"] for row in rows] == ["no", "yes"]
    assert rows[0]["error"] == pytest.approx(0, abs=3)
    assert rows[1]["predicted_ms"] is None
    assert summary(rows).startswith("held out: 1 points, mean absolute error ")
    kept, out = tmp_path / "accuracy.json", tmp_path / "accuracy.png"
    kept.write_text(json.dumps({"rows": [*rows * 2, *({**rows[0], "mbit": mbit} for mbit in (10, 100))]}))
    start(["accuracy", "--figures", str(kept), "--picture", str(out), "--out", str(tmp_path / "again.json")])
    assert set(json.loads((tmp_path / "again.json").read_text())["options"]) == {"repeats", "seconds", "ranks", "mbit"}
    assert out.read_bytes().startswith(b"\x89PNG")
    kept.write_text("{}")
    with pytest.raises(UsageError, match="no figures of the benchmark"):
        start(["accuracy", "--figures", str(kept)])


def test_a_row_says_what_the_clock_misses_without_and_with_the_handling_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a second that a message takes of a core at each end, and of a link that does not count."""
    given = {name: 0.0 if name.endswith("byte") else 1.0 for name in Handling.__dataclass_fields__}
    monkeypatch.setattr(handling, "measure_handling", lambda: given)
    monkeypatch.setattr(accuracy, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr(handling, "time_phases", lambda *_: {"forward": 9.0, "update": 1.0})
    ends = (5.0, 10.0, 15.0)
    monkeypatch.setattr(handling, "measure_kernel", lambda grid, steps: [[Steps(0.0, ends, 15.0, 0, 0, 0)] * 2])
    settings = handling.Settings(repeats=2, ranks=(2,), mbit=1_000_000, strategies=("ring_all_reduce",))
    (row,) = handling.measure(settings)
    assert row["plain_ms"] == pytest.approx(1000, rel=0.01)
    assert row["calibrated_ms"] == pytest.approx(5000, rel=0.01), "the update, and two messages there and back"
    assert (row["measured_ms"], row["plain_error"]) == (pytest.approx(5000), "-80.0 %")


# Namespaces

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


@pytest.mark.end_to_end
@NEEDS_ROOT
def test_ranks_in_namespaces_train_for_some_steps_over_shaped_links() -> None:
    (results,) = measure_kernel([Point(RingAllReduce(), "mlp", 2, 1000)], [3])
    assert [len(result.ends) for result in results] == [3, 3]
    nbytes = 4 * (784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)
    assert [result.nbytes for result in results] == [3 * nbytes] * 2
    assert left() == []


@NEEDS_ROOT
def test_a_rank_that_fails_ends_all() -> None:
    commands = [[sys.executable, "-c", code] for code in ("import time; time.sleep(1e6)", "raise SystemExit('broken')")]
    with namespaces(2) as ranks:
        ranks.shape(1e9)
        with pytest.raises(RunFailed, match=r"rank 1 ended with exit code 1:\nbroken"):
            ranks.run(commands, LIMIT)
    assert left() == []


@NEEDS_ROOT
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
    with pytest.raises(UsageError, match=r"^network namespaces need root, .*: run as root, install iproute2 and nft"):
        namespaces(1).__enter__()
