"""What `transports.base` promises of time, on every transport. Above each test stands what its ranks run."""

import threading
from typing import Any

from tests.ranks import LIMIT, run
from transports.base import Transport


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
