"""What `gradwire.virtual_time.launcher` alone promises, above all when ranks die and come back."""

import os
import resource
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import ANY, Transport
from gradwire.virtual_time.launcher import Death, VirtualTime
from gradwire.virtual_time.network import OneSwitch
from tests.ranks import outcome, virtual_time


def be_interrupted(transport: Transport) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        virtual_time(3).launch(be_interrupted, 3)


def wait_for_it(transport: Transport) -> list[Any]:
    """Rank 2 sends every 0.1 s, at last for half a second, and dies; the others say what they hear, and when."""
    if transport.rank == 2:
        for number in range(3):
            transport.isend(number, 0, "x")
            transport.sleep(0.1)
        transport.isend(torch.zeros(500_000, dtype=torch.uint8), 0, "x")
        transport.recv(0, "never")
    if transport.rank == 1:
        return [outcome(transport.recv, 2, "x"), round(transport.now(), 3), outcome(transport.isend, None, 2, "x")]
    heard = [outcome(lambda: transport.recv(ANY, "x").object) for _ in range(3)]
    return [*heard, transport.recv(2, "x").nbytes, outcome(transport.recv, ANY, "x"), round(transport.now(), 3)]


@pytest.mark.parametrize(("dies", "known"), [(0.35, 0.801), (0.95, 0.95)])
def test_who_dies_is_lost_to_the_others_after_what_it_has_sent(dies: float, known: float) -> None:
    lost, deaths = ("PeerLost", 2), [Death(2, dies)]
    results = virtual_time(3, deaths).launch(wait_for_it, 3, expendable=[1, 2])
    assert results == [[0, 1, 2, 500_000, lost, known], [lost, known, lost], None]
    with pytest.raises(RunFailed, match=rf"^rank 2 \(worker\) was killed at {dies} virtual s$"):
        virtual_time(3, deaths).launch(wait_for_it, 3)


def admit_its_second_life(transport: Transport) -> None:
    for error, may_return in (("PeerLost", True), ("PeerReturned", False)):
        assert outcome(transport.recv, ANY, "x") == (error, 1)
        assert transport.may_return() == may_return
    transport.admit(1)


def come_back(transport: Transport) -> Any:
    """Rank 1 dies and returns; rank 0 lets it in, and hears from its second life."""
    if transport.rank == 1:
        if transport.rejoined:
            assert outcome(transport.isend, None, 2, "x") == ("PeerLost", 2)
            transport.isend(transport.now(), 0, "x")
            return "second life"
        transport.recv(0, "never")
    if transport.rank == 2:
        return None
    admit_its_second_life(transport)
    return transport.recv(1, "x").object


def test_one_that_died_comes_back_when_it_is_told_to() -> None:
    time = virtual_time(3, [Death(1, 0.5, 2.0)])
    assert time.launch(come_back, 3, expendable=[1, 2]) == [2.0, "second life", None]


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


def send_what_is_copied(transport: Transport) -> float:
    with transport.recorder.phase("forward"):
        pass
    if transport.rank == 0:
        transport.isend(torch.zeros(1000, dtype=torch.uint8), 1, "x")
    if transport.rank == 1:
        transport.recv(0, "x").release()
    return transport.now()


@pytest.mark.parametrize(
    ("cores", "copying", "ends"),
    [
        (None, 0.0, [3.0, 3.001, 1.0]),
        (2, 0.0, [3.5, 3.501, 1.5]),  # three on two cores until rank 2 is done
        (1, 0.0, [7.0, 7.001, 3.0]),
        (2, 1e-3, [3.5, 4.5, 1.5]),  # the message has two cores for a second
        (1, 1e-3, [7.0, 9.0, 3.0]),
    ],
)
def test_ranks_on_one_machine_share_its_cores_and_copy_what_they_send(
    cores: int | None, copying: float, ends: list[float]
) -> None:
    seconds = [3.0, 3.0, 1.0]
    time = VirtualTime(
        OneSwitch(3, 1e6, 0.0, late=0.8), lambda rank, phase, part: seconds[rank], cores=cores, copying=copying
    )
    assert time.launch(send_what_is_copied, 3) == pytest.approx(ends)


def hold_a_file(transport: Transport, folder: str) -> int:
    transport.recorder.write_to(Path(folder) / str(transport.rank))
    transport.barrier()
    return sum(map(len, transport.recorder.close().rows()))


def test_many_ranks_need_no_deep_stack_and_each_may_have_a_file_beside_those_that_are_open(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(open(os.devnull))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 100, limits[1]))
        assert virtual_time(1200).launch(hold_a_file, 1200, str(tmp_path)) == [0] * 1200


def return_soon(transport: Transport) -> Any:
    """Rank 0 sends to both lives of rank 1; the first message, of a second, is on its way when the first life ends."""
    if transport.rank == 1:
        return transport.recv(0, "x").vector.tolist()[0]
    own = transport.allocate(1_000_000).fill_(1)
    work = transport.isend(own.view(torch.uint8)[:1_000_000], 1, "x")
    admit_its_second_life(transport)
    work.wait()  # nobody reads it
    transport.isend(torch.full((3,), 2.0), 1, "x")
    return transport.now()


def test_what_was_sent_to_the_first_life_does_not_reach_the_second() -> None:
    assert virtual_time(2, [Death(1, 0.5, 0.6)]).launch(return_soon, 2, expendable=[1]) == [pytest.approx(1.0), 2.0]


def end_after_ones_death(transport: Transport, returns: bool) -> Any:
    """The first life of rank 1 has come to its end, at 1 s of its clock, when it dies at 0.5 s."""
    if transport.rank == 1:
        if not transport.rejoined:
            transport.sleep(1.0)
            return "first life"
        transport.recv(0, "talk to me")
        return "second life"
    if not returns:
        return outcome(transport.recv, 1, "x")
    admit_its_second_life(transport)
    transport.sleep(1.0)
    assert transport.recv(ANY, "x", timeout=0) is None  # so that what happens until now has happened
    transport.isend(None, 1, "talk to me")
    return transport.is_gone(1)


def test_who_would_have_ended_later_has_died_and_leaves_once() -> None:
    for again, results in ((0.6, [False, "second life"]), (None, [("PeerLost", 1), None])):
        time = virtual_time(2, [Death(1, 0.5, again)])
        assert time.launch(end_after_ones_death, 2, again is not None, expendable=[1]) == results
