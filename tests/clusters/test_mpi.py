"""What is special to MPI: foreign messages, memory that is used again, and a communicator of one's own."""

from typing import Any

import torch

from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import Setup
from tests.pools import NEEDS_MPI
from tests.ranks import LIMIT, outcome, run, values

pytestmark = [*NEEDS_MPI]


def mpi_of(transport: Transport) -> Any:
    """Return it as what it is, whose module can only be imported where MPI is."""
    from gradwire.clusters.mpi import Mpi

    assert isinstance(transport, Mpi)
    return transport


def receive_what_is_foreign(transport: Transport) -> Any:
    comm = mpi_of(transport)._comm
    if transport.rank == 1:
        for raw in (bytes(256), b"short"):
            comm.Send(raw, 0, tag=1)
        transport.isend("next", 0, "x")
        return None
    return [outcome(transport.recv, 1, "x") for _ in range(2)] + [transport.recv(1, "x").object]


def test_what_is_no_header_is_refused_and_harms_nothing() -> None:
    first, second, message = run("mpi", receive_what_is_foreign, 2)[0]
    said = "what rank 1 has sent is not the header of a message: "
    assert first == ("ValueError", said + r"it begins with b'\x00\x00\x00\x00' instead of b'dptr'")
    assert second == ("ValueError", said + "5 bytes instead of 256")
    assert message == "next"


def use_its_memory_again(transport: Transport) -> Any:
    """Return how many places received vectors of one length had, and what a kept one still holds at the end."""
    own = transport.allocate(1000)
    if transport.rank == 1:
        for number in range(20):
            transport.isend(own.fill_(number), 0, "x").wait()
            transport.recv(0, "received")
        return None
    kept = transport.recv(1, "x").detach()
    transport.isend(None, 1, "received")
    held = transport.recv(1, "x")
    transport.isend(None, 1, "received")
    places = set()
    for _ in range(18):
        with transport.recv(1, "x") as message:
            places.add(message.vector.data_ptr())
        transport.isend(None, 1, "received")
    assert held.vector.data_ptr() not in places
    return len(places), set(kept.vector.tolist()), set(values(held))


def test_memory_is_used_again_once_a_message_is_released_and_not_before() -> None:
    assert run("mpi", use_its_memory_again, 2)[0] == (1, {0}, {1})


def close_early_and_open_again(transport: Transport) -> Any:
    """Rank 0 closes before the others, whose goodbyes must not be heard on the transport that comes next."""
    from gradwire.clusters.mpi import Mpi

    first = Mpi(Setup(torch.device("cpu"), 0.1 if transport.rank == 0 else LIMIT, Recorder(enabled=False)))
    if transport.rank == 0:
        first.close()
    for peer in transport.peers:
        transport.isend(None, peer, "closed")
        transport.recv(peer, "closed")
    first.close()
    N = transport.world_size
    with Mpi(Setup(torch.device("cpu"), LIMIT, Recorder(enabled=False))) as second:
        second.isend(transport.rank, (transport.rank + 1) % N, "x")
        return second.recv((transport.rank - 1) % N, "x").object


def test_what_comes_after_a_close_at_its_limit_is_not_heard_later() -> None:
    assert run("mpi", close_early_and_open_again, 3) == [2, 0, 1]
