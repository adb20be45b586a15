"""What `transports.base` promises when ranks leave, on every transport. Above each test stands what its ranks run."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.timing import now as clock
from tests.core.transports.samples import MILLION
from tests.ranks import LIMIT, outcome, run, values, wait_until


def leave_in_order(transport: Transport, order: list[int]) -> Any:
    """The ranks of `order` leave one after another, each with messages still under way; rank 0 stays and looks."""
    own = transport.allocate(100).fill_(transport.rank)
    if transport.rank != 0:
        transport.recv(0, "leave")
        transport.isend(own[:5], 0, "last")
        transport.isend(torch.full((MILLION // 2,), transport.rank), 0, "last")
        transport.isend(transport.rank, 0, "last")
        transport.close()
        transport.close()
        return None
    seen: list[Any] = []
    for leaver in order:
        transport.isend(None, leaver, "leave")
        last = [set(values(transport.recv(leaver, "last"))) for _ in range(2)]
        seen.append((last, transport.recv(leaver, "last").object))
        seen.append([outcome(transport.recv, leaver, "last"), outcome(transport.isend, 1, leaver, "x")])
        if leaver != order[-1]:
            seen.append(outcome(transport.recv, ANY, "x", timeout=0))  # who has left is no news
    return [*seen, outcome(transport.recv, ANY, "x")[0]]


@pytest.mark.slow
@pytest.mark.parametrize("order", [[1, 2], [2, 1]])
def test_ranks_may_leave_in_any_order(engine: str, order: list[int]) -> None:
    expected: list[Any] = []
    for leaver in order:
        expected += [([{leaver}] * 2, leaver), [("PeerLost", leaver)] * 2, None]
    assert run(engine, leave_in_order, 3, order)[0] == [*expected[:-1], "PeerLost"]


def leave_with_mail_unread(transport: Transport, folder: str) -> None:
    """Everybody has sent more than a pipe takes, and nobody reads it. Files tell when all have."""
    own = transport.allocate(1000)
    for peer in transport.peers:
        for number in range(20):
            transport.isend(torch.ones(100_000), peer, "unread")
            transport.isend(own, peer, "unread slice")
            transport.isend(number, peer, "unread object")
    Path(folder, str(transport.rank)).touch()
    wait_until(lambda: len(list(Path(folder).iterdir())) == transport.world_size)


def test_ranks_may_leave_with_messages_unread(engine_in_real_time: str, tmp_path: Path) -> None:
    t0 = clock()
    run(engine_in_real_time, leave_with_mail_unread, 3, str(tmp_path))
    assert clock() - t0 < LIMIT / 2, "they waited for each other until the time-out"


def leave_while_the_other_is_busy(transport: Transport, left: str) -> Any:
    """Rank 1 neither receives nor closes before it sees, by a file, that rank 0 is out of `close`."""
    if transport.rank == 0:
        transport.isend("last words", 1, "x")
        transport.timeout = 0.5
        transport.close()
        Path(left).touch()
        return None
    return wait_until(Path(left).exists), transport.recv(0, "x").object, outcome(transport.recv, 0, "x")


def test_close_waits_for_a_busy_peer_no_longer_than_the_time_out(engine_in_real_time: str, tmp_path: Path) -> None:
    seen = run(engine_in_real_time, leave_while_the_other_is_busy, 2, str(tmp_path / "left"))[1]
    assert seen == (True, "last words", ("PeerLost", 0))


def use_after_close(transport: Transport) -> list[str]:
    peer = 1 - transport.rank
    vector = transport.allocate(10)
    work = transport.isend(vector, peer, "x")
    held = transport.recv(peer, "x")
    transport.close()
    with tempfile.TemporaryFile() as file:  # it may be given the number that a pipe had
        held.release()
        work.wait()
        size = os.fstat(file.fileno()).st_size
    said = []
    for use in (lambda: transport.isend(1, peer, "y"), lambda: transport.recv(peer, "y"), transport.barrier):
        try:
            use()
        except RuntimeError as error:
            said.append(str(error))
    return [*said, str(size)]


def test_a_closed_transport_says_so_and_writes_nowhere(engine: str) -> None:
    for rank, said in enumerate(run(engine, use_after_close, 2)):
        assert said == [f"rank {rank} has closed its transport"] * 3 + ["0"]
