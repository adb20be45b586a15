"""What `launchers.virtual` promises when ranks fail, die and come back."""

import itertools
from typing import Any

import pytest
import torch

from launchers.virtual import Death, VirtualTime
from records.errors import RunFailed, UsageError
from tests.ranks import outcome, virtual_time
from transports.base import ANY, PeerLost, PeerReturned, Transport
from transports.network import OneSwitch


def fail_on_rank_1(transport: Transport, error: BaseException) -> None:
    if transport.rank == 1:
        raise error
    transport.recv(1, "x")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no"), r"rank 1 \(worker\) raised ValueError: no\n(.|\n)*in fail_on_rank_1"),
        (RunFailed("the loss became nan"), r"^rank 1 \(worker\): the loss became nan$"),
        (UsageError("--x: must be y"), r"^--x: must be y$"),
    ],
)
def test_a_failure_ends_the_run_by_name(error: Exception, message: str) -> None:
    with pytest.raises(RunFailed, match=message) as caught:
        virtual_time(3).launch(fail_on_rank_1, 3, error)
    assert caught.value.exit_code == (2 if isinstance(error, UsageError) else 1)


def test_an_interrupt_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        virtual_time(3).launch(fail_on_rank_1, 3, KeyboardInterrupt())


def test_what_ranks_report_reaches_the_caller() -> None:
    heard: list[tuple[int, str]] = []
    virtual_time(3).launch(
        lambda transport, report: report(f"of {transport.rank}"), 3, on_report=lambda *news: heard.append(news)
    )
    assert heard == [(0, "of 0"), (1, "of 1"), (2, "of 2")]


def wait_for_it(transport: Transport) -> list[Any]:
    """Rank 2 sends every 0.1 s; the others say what they hear of it, and when."""
    if transport.rank == 2:
        for number in itertools.count():
            transport.isend(number, 0, "x")
            transport.sleep(0.1)
            transport.recv(0, "x", timeout=0)
    if transport.rank == 1:
        return [outcome(transport.recv, 2, "x"), round(transport.now(), 3), outcome(transport.isend, None, 2, "x")]
    seen: list[Any] = []
    while True:
        try:
            seen.append(transport.recv(ANY, "x").object)
        except PeerLost as lost:
            return [*seen, lost.rank, round(transport.now(), 3)]


def test_who_dies_is_lost_to_the_others_after_what_it_has_sent() -> None:
    time = virtual_time(3, [Death(2, 0.25)])
    first, second, third = time.launch(wait_for_it, 3, expendable=[1, 2])
    assert first == [0, 1, 2, 2, 0.25]
    assert second == [("PeerLost", 2), 0.25, ("PeerLost", 2)]
    assert third is None


def send_and_die(transport: Transport) -> list[Any]:
    if transport.rank == 1:
        transport.isend(torch.zeros(500_000, dtype=torch.uint8), 0, "x")
        transport.recv(0, "never")
    return [transport.recv(1, "x").nbytes, round(transport.now(), 3), outcome(transport.recv, 1, "x")]


def test_what_is_on_its_way_when_its_sender_dies_arrives_before_the_death_is_known() -> None:
    assert virtual_time(2, [Death(1, 0.25)]).launch(send_and_die, 2, expendable=[1])[0] == [
        500_000, 0.501, ("PeerLost", 1),
    ]  # fmt: skip


def test_the_death_of_a_rank_that_is_needed_ends_the_run() -> None:
    with pytest.raises(RunFailed, match=r"^rank 2 \(worker\) was killed at 0.25 virtual s$"):
        virtual_time(3, [Death(2, 0.25)]).launch(wait_for_it, 3)


def come_back(transport: Transport) -> list[Any]:
    """Rank 1 dies and returns; rank 0 lets it in, and hears from its second life."""
    if transport.rank == 1:
        if transport.rejoined:
            assert outcome(transport.isend, None, 2, "x") == ("PeerLost", 2)
            transport.isend(transport.now(), 0, "x")
            return ["second life"]
        transport.recv(0, "never")
    if transport.rank == 2:
        return []
    seen: list[Any] = []
    for _ in range(2):
        try:
            transport.recv(ANY, "x")
        except PeerLost as lost:
            seen.append(("lost", lost.rank, transport.may_return()))
        except PeerReturned as returned:
            seen.append(("returned", returned.rank, transport.may_return()))
            transport.admit(returned.rank)
    return [*seen, transport.recv(1, "x").object]


def test_one_that_died_comes_back_when_it_is_told_to() -> None:
    results = virtual_time(3, [Death(1, 0.5, 2.0)]).launch(come_back, 3, expendable=[1, 2])
    assert results == [[("lost", 1, True), ("returned", 1, False), 2.0], ["second life"], []]


def compute(transport: Transport) -> tuple[float, list[list[Any]]]:
    for _ in range(2):
        with transport.recorder.phase("forward"):
            pass
    with transport.recorder.phase("update", part=0.5), transport.recorder.paused():
        pass
    events = transport.recorder.frame()
    return transport.now(), events[["phase", "t0", "t1"]].values.tolist()


@pytest.mark.parametrize("record", [True, False])
def test_the_time_of_a_phase_passes_at_its_end_recorded_or_not(record: bool) -> None:
    seconds = {"forward": 3.0, "update": 2.0}
    time = VirtualTime(OneSwitch(2, 1e6, 0.0), lambda rank, phase, part: (rank + 1) * seconds[phase] * part)
    (first, events), (second, _) = time.launch(compute, 2, record=record)
    assert (first, second) == (7.0, 14.0)
    assert events == ([["forward", 0, 3], ["forward", 3, 6], ["update", 6, 7]] if record else [])


def rank_of(transport: Transport) -> int:
    return transport.rank


def test_many_ranks_need_no_deep_stack() -> None:
    assert virtual_time(2000).launch(rank_of, 2000) == list(range(2000))
