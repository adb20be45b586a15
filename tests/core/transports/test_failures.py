"""A peer that is late, dead, or leaves by an error. Above each test stands the function that its ranks run."""

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.clusters.headers import SIZE, Header, Kind, pack
from gradwire.clusters.remote import Remote
from gradwire.core.transports.base import ANY, PeerLost, Transport
from gradwire.core.transports.messages import WaitTimeout
from tests.core.transports.samples import MILLION, pair
from tests.pools import NEEDS_MPI
from tests.ranks import LIMIT, outcome, run, run_with_deaths, values


def test_a_wait_for_a_release_times_out_too() -> None:
    with pair() as (first, second):
        work = first.isend(first.allocate(10), 1, "x")
        first.timeout = 0.1
        with pytest.raises(WaitTimeout, match="release"):
            work.wait()
        second.recv(0, "x").release()
        first.timeout = LIMIT
        work.wait()
        assert work.done


def be_declared_dead(transport: Transport) -> Any:
    """Rank 1 stops for good; its pipes stay open, so only the launcher can tell rank 0."""
    if transport.rank == 1:
        transport.isend("before", 0, "x")
        os.kill(os.getpid(), signal.SIGSTOP)
    return (
        transport.recv(1, "x").object,
        outcome(transport.recv, 1, "x", timeout=LIMIT),
        outcome(transport.isend, 1, 1, "x"),
    )


@pytest.mark.slow
def test_a_rank_that_the_launcher_gives_up_is_lost() -> None:
    lost = ("PeerLost", 1)
    seen = run_with_deaths("shared_memory", be_declared_dead, 2, timeout=5.0)
    assert seen == {0: ("before", lost, lost)}


# Without shared memory


def fail(transport: Transport, src: int) -> object:
    """Rank 1 sends something and fails; rank 0 gets what was sent, and then learns of it."""
    assert isinstance(transport, Remote)
    if transport.rank == 1:
        transport.isend("last", 0, "x")
        with pytest.raises(ZeroDivisionError), transport:
            raise ZeroDivisionError
        return None
    return [transport.recv(1, "x").object, outcome(transport.recv, src, "x"), outcome(transport.recv, 1, "x")]


def send_only_a_header(transport: Transport) -> object:
    """Rank 0 sends the payload when rank 2 has the message of rank 1, which was sent after the header."""
    numel = MILLION  # so that it does not travel in one piece with its header
    if transport.rank == 0:
        raw = pack(Header(Kind.TENSOR, "x", torch.float32, numel))
        dist.send(torch.frombuffer(bytearray(raw), dtype=torch.uint8), 2, tag=0)
        transport.isend(None, 1, "header sent")
        transport.recv(2, "go on")
        dist.send(torch.ones(numel).view(torch.uint8), 2, tag=1)
        return None
    if transport.rank == 1:
        transport.recv(0, "header sent")
        transport.isend("whole", 2, "x")
        return None
    first = transport.recv(ANY, "x").object
    transport.isend(None, 0, "go on")
    return first, set(values(transport.recv(ANY, "x")))


def test_a_message_that_stalls_holds_up_no_other_sender() -> None:
    assert run("process_group", send_only_a_header, 3)[2] == ("whole", {1.0})


@pytest.mark.parametrize("src", [1, ANY])
@pytest.mark.parametrize("kind", ["process_group", pytest.param("mpi", marks=NEEDS_MPI)])
def test_a_rank_that_fails_is_lost_to_all(kind: str, src: int) -> None:
    assert run(kind, fail, 2, src)[0] == ["last", ("PeerLost", 1), ("PeerLost", 1)]


def send_what_is_no_header(transport: Transport) -> object:
    if transport.rank == 0:
        dist.send(torch.full((SIZE,), 7, dtype=torch.uint8), 1, tag=0)
        transport.timeout = 1.0  # rank 1 hears no goodbye any more
        return None
    with pytest.raises(PeerLost, match="lost rank 0: what it has sent is not the header of a message") as caught:
        transport.recv(0, "x")
    return caught.value.rank


def test_what_is_no_header_is_refused_and_its_sender_named() -> None:
    assert run("process_group", send_what_is_no_header, 2)[1] == 0
