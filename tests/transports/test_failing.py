"""A rank that leaves by an error: the waits of its peers end at once, and say why."""

import pytest

from tests.mpi_ranks import NEEDS_MPI
from tests.ranks import outcome, run
from transports.base import ANY, Transport
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


@pytest.mark.parametrize("src", [1, ANY])
@pytest.mark.parametrize("kind", ["process_group", pytest.param("mpi", marks=NEEDS_MPI)])
def test_a_rank_that_fails_is_lost_to_all(kind: str, src: int) -> None:
    assert run(kind, fail, 2, src)[0] == ["last", ("PeerLost", 1), ("PeerLost", 1)]
