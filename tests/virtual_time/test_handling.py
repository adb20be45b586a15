"""What messages take of the ranks' cores, and acknowledgements of the cards: what is measured, and what is charged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.launchers.launcher import Job
from gradwire.core.training.checks import resolve
from gradwire.core.transports.base import Transport
from gradwire.core.transports.throttle import IN_ORDER
from gradwire.networks.predict import predict
from gradwire.networks.units import ACKNOWLEDGED
from gradwire.options import Options
from gradwire.virtual_time import calibration, simulate
from gradwire.virtual_time.cluster import ClusterOptions, handling
from gradwire.virtual_time.handling import SPREAD, Handling, measure_handling
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from gradwire.virtual_time.steps import Sizes, StepsJob, seconds_of_a_step, take_steps
from strategies import RingAllReduce
from tests.runs import small

N_BYTES, BANDWIDTH, LATENCY = 4000, 1000.0, 1.0
HANDLING = Handling(send=10.0, send_byte=1e-3, receive=20.0, receive_byte=2e-3)


def run(work: Any, world_size: int = 2, given: Handling | None = None, **network: Any) -> list[Any]:
    time = VirtualTime(OneSwitch(world_size, BANDWIDTH, LATENCY, **network), lambda *_: 0.0, handling=given)
    return time.run(Job(work, world_size))


def one_way(transport: Transport) -> float:
    if transport.rank == 0:
        transport.isend(torch.zeros(N_BYTES // 4), 1, "m")
    else:
        assert transport.recv(0, "m", timeout=0) is None, "a look that finds nothing takes a microsecond"
        transport.recv(0, "m").release()
    return transport.now()


def both_ways(transport: Transport) -> float:
    transport.isend(torch.zeros(N_BYTES // 4), 1 - transport.rank, "m")
    transport.recv(1 - transport.rank, "m").release()
    return transport.now()


def test_a_message_takes_its_time_of_both_cores() -> None:
    alone = LATENCY + N_BYTES / BANDWIDTH
    assert run(one_way) == pytest.approx([0, alone])
    assert run(one_way, given=HANDLING) == pytest.approx([14, 14 + alone + 28])


def test_acknowledgements_take_a_part_of_the_other_way_only_where_data_use_it() -> None:
    alone = N_BYTES / BANDWIDTH
    assert run(one_way, acknowledged=0.25)[1] == pytest.approx(LATENCY + alone)
    assert run(both_ways) == pytest.approx([LATENCY + alone] * 2)
    assert run(both_ways, acknowledged=0.25) == pytest.approx([LATENCY + 1.25 * alone] * 2)


@pytest.mark.parametrize("N", [2, 3, 8])
def test_a_ring_takes_its_closed_form_and_a_message_and_the_acknowledgements_of_each_turn(N: int) -> None:
    strategy, parameters = RingAllReduce(), 240
    options = resolve(Options(strategy=strategy, n_gpus=N, device="cpu"))
    network = OneSwitch(N, BANDWIDTH, LATENCY, acknowledged=ACKNOWLEDGED)
    time = VirtualTime(network, lambda *_: 0.0, compute=False, handling=HANDLING)
    job = StepsJob(options, Sizes(parameters), 1, 3)
    results = time.launch(take_steps, N, job, device="meta", roles=options.roles, on_report=lambda *_: None)
    form = predict(strategy, N, 4 * parameters, 0.0, BANDWIDTH / (1 + ACKNOWLEDGED), LATENCY)
    assert form is not None
    nbytes = 4 * parameters // N
    handled = 2 * (N - 1) * (HANDLING.to_send(nbytes) + HANDLING.to_receive(nbytes))
    assert seconds_of_a_step(results, options.roles) == pytest.approx(form + handled)


def test_a_cluster_counts_the_handling_of_messages_where_it_is_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = dict.fromkeys(Handling.__dataclass_fields__, 1e-6)
    monkeypatch.setattr(calibration, "measure_handling", lambda: measured)
    options = resolve(small(tmp_path, n_gpus=2, bandwidth="1gbit", latency="0s"))
    assert handling(ClusterOptions(), options) == Handling(1e-6, 1e-6, 1e-6, 1e-6)
    copied = ClusterOptions(cores=2, copying="1GB/s")
    assert handling(copied, options) == Handling(1e-6, 0.0, 1e-6, 0.0), "a byte's is given"
    assert [handling(given, options) for given in (ClusterOptions(compute="1ms"), ClusterOptions(flops=1e9))] == [
        None
    ] * 2


def test_a_calibrated_run_says_what_a_message_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = dict.fromkeys(Handling.__dataclass_fields__, 1e-6)
    monkeypatch.setattr(calibration, "measure_handling", lambda: measured)
    options = resolve(small(tmp_path, n_gpus=2))
    text = simulate.simulate(options, ClusterOptions(), quiet=True).text()
    assert "a message       1 us + 1000.00 ns a byte to send, 1 us + 1000.00 ns a byte to receive; ackn" in text
    facts = json.loads((tmp_path / "run.json").read_text())["cluster"]
    assert facts["message_seconds"] == {"send": 1e-6, "send_byte": 1e-6, "receive": 1e-6, "receive_byte": 1e-6}
    assert facts["acknowledged"] == ACKNOWLEDGED == pytest.approx(0.0218, abs=1e-4)
    in_order = simulate.simulate(
        small(tmp_path, n_gpus=2, run_name="order"), ClusterOptions(sharing=IN_ORDER), quiet=True
    )
    assert in_order.time.network.acknowledged == 0
    given = simulate.simulate(small(tmp_path, n_gpus=2, run_name="given"), ClusterOptions(compute="1ms"), quiet=True)
    assert "a message" not in given.text()
    assert given.time.network.acknowledged == 0
    assert "message_seconds" not in json.loads((tmp_path / "given.json").read_text())["cluster"]


def test_what_a_message_takes_is_measured_between_two_processes() -> None:
    measured = measure_handling()
    assert list(measured) == [f"{name}{of}" for name in Handling.__dataclass_fields__ for of in ("", SPREAD)]
    assert 0 < measured["send"] < 1
    assert 0 < measured["receive"] < 1
    assert min(measured.values()) >= 0
