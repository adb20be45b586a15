"""A rank that leaves by an error: the waits of its peers end at once, and say why."""

import pytest
import torch
import torch.distributed as dist

from tests.pools import NEEDS_MPI
from tests.ranks import outcome, run
from transports.base import ANY, PeerLost, Transport
from transports.headers import SIZE
from transports.remote import Remote


def fail(transport: Transport, src: int) -> object:
    """Rank 1 sends something and fails; rank 0 gets what was sent, and then learns of it."""
    assert isinstance(transport, Remote)
    if transport.rank == 1:
        transport.isend("last", 0, "x")
        with pytest.raises(ZeroDivisionError), transport:
            raise ZeroDivisionError
        return None
    return [transport.recv(1, "x").object, outcome(transport.recv, src, "x"), outcome(transport.recv, 1, "x")]


def send_what_is_no_header(transport: Transport) -> object:
    if transport.rank == 1:
        dist.send(torch.full((SIZE,), 7, dtype=torch.uint8), 0, tag=0)
        transport.timeout = 1.0  # rank 0 hears no goodbye any more
        return None
    with pytest.raises(PeerLost, match="lost rank 1: what it has sent is not the header of a message") as caught:
        transport.recv(1, "x")
    return caught.value.rank


def test_what_is_no_header_is_refused_and_its_sender_named() -> None:
    assert run("process_group", send_what_is_no_header, 2)[0] == 1


@pytest.mark.parametrize("src", [1, ANY])
@pytest.mark.parametrize("kind", ["process_group", pytest.param("mpi", marks=NEEDS_MPI)])
def test_a_rank_that_fails_is_lost_to_all(kind: str, src: int) -> None:
    assert run(kind, fail, 2, src)[0] == ["last", ("PeerLost", 1), ("PeerLost", 1)]
