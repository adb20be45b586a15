"""Virtual time against the kernel's network: what is calibrated, compared and drawn."""

import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks import accuracy, handling
from benchmarks.accuracy import CALIBRATED, Clock, compare, measure_kernel, summary
from benchmarks.draw_accuracy import Settings, draw
from benchmarks.points import Point, build
from gradwire.core.records.errors import UsageError
from gradwire.core.records.machine import usable_cores
from gradwire.core.strategy.replica import layout_of
from gradwire.virtual_time.handling import Handling
from gradwire.virtual_time.steps import Steps
from strategies import AsyncParamServer, ParamServer, RingAllReduce

PHASES = {"forward": 1e-3, "backward": 2e-3, "update": 1e-4}
CLOCK = Clock({f"mlp {one.name}": PHASES for one in (RingAllReduce, ParamServer, AsyncParamServer)})
SERVER, RING = Point(ParamServer(), "mlp", 2, 1000), Point(RingAllReduce(), "mlp", 2, 1000)
SEEN = Point(ParamServer(), "mlp", *CALIBRATED), Point(RingAllReduce(), "mlp", *CALIBRATED)


def test_without_what_a_machine_adds_a_step_takes_what_its_closed_form_says() -> None:
    for point in (SERVER, RING, Point(RingAllReduce(), "mlp", 3, 100)):
        shared = max(1, point.n / len(usable_cores()))  # ranks compute on a core
        predicted = CLOCK.predict(point)
        assert predicted is not None
        passes = 3 * (shared - 1)
        assert 1e3 * CLOCK.simulate(point, 5) == pytest.approx(predicted + passes, rel=0.01)


def test_workers_of_an_asynchronous_server_begin_in_step_and_come_to_take_turns() -> None:
    point = Point(AsyncParamServer(), "mlp", 3, 100)
    assert point.options.link
    P = 4 * layout_of(build("mlp")).n / point.options.link.bandwidth
    first, later = (CLOCK.simulate(point, steps) / P for steps in (2, 41))
    assert first > 3.5, "both send, then both receive: nearly 2 P in each direction"
    assert later < 2.3, "one sends while the other receives"


def test_the_calibration_finds_what_messages_cost_and_the_rest_is_held_out() -> None:
    truth = Clock(CLOCK.phases, latency=4e-4, copying=2e-9)
    unseen = Point(AsyncParamServer(), "mlp", 3, 100)
    measured = [(point, 9, truth.simulate(point, 9), [1.0]) for point in (*SEEN, unseen)]
    rows = list(compare(CLOCK, measured))
    assert [row["held_out"] for row in rows] == ["no", "no", "yes"]
    assert [row["error"] for row in rows[:2]] == pytest.approx([0, 0], abs=3)
    assert rows[2]["predicted_ms"] is None
    assert summary(rows).startswith("held out: 1 points, mean absolute error ")


def test_the_picture_is_of_the_kept_figures(tmp_path: Path) -> None:
    row = {"network": "cnn", "ranks": 2, "predicted_ms": 1.0, "simulated_ms": 1.1, "measured_ms": 1.0, "error": 10.0}
    rows = [
        {**row, "strategy": name, "mbit": mbit, "held_out": held_out}
        for name in ("ring", "server")
        for mbit, held_out in ((10, "yes"), (100, "yes"), (1000, "no"), (1000, "yes"))
    ]
    kept, out = tmp_path / "accuracy.json", tmp_path / "accuracy.png"
    kept.write_text(json.dumps({"rows": [*rows, {**rows[0], "strategy": "gossip", "predicted_ms": None}]}))
    draw(Settings(kept, out))
    assert out.read_bytes().startswith(b"\x89PNG")
    kept.write_text("{}")
    with pytest.raises(UsageError, match="no figures of the benchmark"):
        draw(Settings(kept, out))


@pytest.mark.end_to_end
@pytest.mark.xdist_group("namespaces")  # a machine has one set of them
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nft"), reason="needs root, ip, tc and nft")
def test_ranks_in_namespaces_train_for_some_steps() -> None:
    (results,) = measure_kernel([RING], [3])
    assert [len(one.ends) for one in results] == [3, 3]
    nbytes = 4 * (784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)
    assert [one.nbytes for one in results] == [3 * nbytes] * 2


def test_a_row_says_what_the_clock_misses_without_and_with_the_handling_of_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a second that a message takes of a core at each end, and of a link that does not count."""
    given = {name: 0.0 if name.endswith("byte") else 1.0 for name in Handling.__dataclass_fields__}
    monkeypatch.setattr(handling, "measure_handling", lambda: given)
    monkeypatch.setattr(accuracy, "usable_cores", lambda: {0, 1})
    monkeypatch.setattr(handling, "time_phases", lambda *_: {"forward": 9.0, "update": 1.0})
    ends = tuple(5.0 * i for i in range(1, 4))
    measured = [Steps(0.0, ends, ends[-1], 0, 0, 0)] * 2
    monkeypatch.setattr(handling, "measure_kernel", lambda grid, steps: [measured])
    settings = handling.HandlingSettings(repeats=2, ranks=(2,), mbit=1_000_000, strategies=("ring_all_reduce",))
    (row,) = handling.measure(settings)
    assert row["plain_ms"] == pytest.approx(1000, rel=0.01)
    assert row["calibrated_ms"] == pytest.approx(5000, rel=0.01), "the update, and two messages there and back"
    assert (row["measured_ms"], row["plain_error"]) == (pytest.approx(5000), "-80.0 %")
