"""What `transports.base` promises of time and of limits, on every transport. Above each test: what its ranks run."""

import threading
from typing import Any

import pytest

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.messages import WaitTimeout
from tests.ranks import LIMIT, run


def pass_the_time_round(transport: Transport) -> list[float]:
    """A message goes round five times; each rank tells how long after it was sent, by both clocks, it was there.

    The last figures are how long a sleep took, by the clock and of computing.
    """
    N, r = transport.world_size, transport.rank
    took = []
    for turn in range(5):
        if turn or r:
            took.append(-transport.recv((r - 1) % N, "time").object + transport.now())
        transport.isend(transport.now(), (r + 1) % N, "time")
    if r == 0:
        took.append(-transport.recv(N - 1, "time").object + transport.now())
    wrong_by = transport.alignment.error if transport.alignment else 0.0
    t0, computed = transport.now(), transport.cpu_seconds()
    transport.sleep(0.01)
    slept = transport.now() - t0 - (0.01 - 1e-9)
    return [*(seconds + 2 * wrong_by for seconds in took), slept, transport.cpu_seconds() - computed]


def test_no_message_is_there_before_it_was_sent_by_the_time_of_all_which_goes_on(engine: str) -> None:
    for took in run(engine, pass_the_time_round, 3):
        assert len(took) == 5 + 2
        assert min(took) >= 0


def send_while_busy(transport: Transport) -> Any:
    """Rank 1 is busy until it has told so three times, and tells nothing afterwards."""
    if transport.rank == 0:
        for _ in range(3):
            transport.recv(1, "busy")
        more = transport.recv(1, ("busy", "done"))
        while more.tag == "busy":
            more = transport.recv(1, ("busy", "done"))
        return more.object
    told, enough = [0], threading.Event()

    def tell() -> None:
        transport.isend(None, 0, "busy")
        told[0] += 1
        if told[0] == 3:
            enough.set()

    transport.timeout = 0.2
    with transport.while_busy(tell):
        enough.wait(LIMIT)
    transport.timeout = LIMIT
    transport.isend("text", 0, "done")
    return told[0] >= 3


def test_a_rank_that_is_busy_tells_so(engine_in_real_time: str) -> None:
    assert run(engine_in_real_time, send_while_busy, 2) == ["text", True]


def wait_in_vain(transport: Transport) -> dict[str, Any]:
    if transport.rank != 0:
        transport.recv(0, "go on")
        transport.isend(transport.rank, 0, "x")
        transport.isend(transport.rank, 0, "y")
        transport.recv(0, "go home")
        return {}

    def wait(**limit: float) -> list[tuple[tuple[int, ...], str, bool]]:
        seen = []
        for src in (2, ANY):
            t0 = transport.now()
            with pytest.raises(WaitTimeout) as caught:
                transport.recv(src, "x", **limit)
            seen.append((caught.value.ranks, str(caught.value), transport.now() - t0 >= 0.2 - 1e-9))
        return seen

    given_limit = wait(timeout=0.2)
    transport.timeout = 0.2
    own_limit = wait()
    transport.timeout = LIMIT
    for peer in transport.peers:
        transport.isend(None, peer, "go on")
    after = [[transport.recv(src, tag).object for src in (2, ANY)] for tag in ("x", "y")]
    for peer in transport.peers:
        transport.isend(None, peer, "go home")
    return {"given": given_limit, "own": own_limit, "after": after}


def test_a_time_out_names_the_ranks_and_harms_nothing(engine: str) -> None:
    seen = run(engine, wait_in_vain, 3)[0]
    assert seen["given"] == seen["own"]
    assert seen["given"] == [
        ((2,), "rank 0 waited 0.2 s for 'x' from rank 2", True),
        ((1, 2), "rank 0 waited 0.2 s for 'x' from rank 1, 2", True),
    ]
    assert [sorted(numbers) for numbers in seen["after"]] == [[1, 2]] * 2
