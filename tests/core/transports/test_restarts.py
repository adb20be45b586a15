"""Ranks that are started again: what launcher and transport promise of them. Above each test, its ranks' work."""

from typing import Any

import pytest
import torch

from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.base import ANY, PeerLost, Transport
from tests.core.transports.samples import die
from tests.ranks import LIMIT, launch, outcome

ONCE: dict[str, Any] = {"timeout": LIMIT, "expendable": [1], "restarts": 1}


def see_it_return(transport: Transport) -> None:
    """Wait until rank 1 has died and is there again."""
    for error in ("PeerLost", "PeerReturned"):
        assert outcome(transport.recv, ANY, "nothing") == (error, 1)


def live_twice(transport: Transport) -> Any:
    """Rank 1 sends and dies; started again, it sends something else and shares a vector. Rank 0 takes it in then."""
    vector = transport.allocate(4)
    if transport.rank == 1:
        vector.fill_(2 if transport.rejoined else 1)
        transport.isend(vector, 0, "vector")
        transport.isend("second" if transport.rejoined else "first", 0, "life")
        if not transport.rejoined:
            die()  # before it has looked at anything
        shared = transport.shared_vector("x", 3, torch.int64, [0, 1])
        shared[1] = 6
        transport.isend(None, 0, "written")
        transport.recv(0, "go home")
        return transport.recv(0, "buffer").vector.tolist(), shared.tolist()
    shared = transport.shared_vector("x", 3, torch.int64, [0, 1])
    shared[0] = 5
    see_it_return(transport)
    with pytest.raises(PeerLost):
        transport.isend("too early", 1, "go home")
    transport.admit(1)
    assert not transport.may_return()
    seen = (transport.recv(1, "life").object, transport.recv(1, "vector").vector.tolist())
    transport.recv(1, "written")
    shared[2] = 7
    transport.isend(None, 1, "go home")
    transport.isend(vector.fill_(7), 1, "buffer").wait()
    return *seen, shared.tolist()


def test_what_an_earlier_life_sent_is_discarded_and_a_newcomer_is_handed_the_memory_of_before() -> None:
    results = launch(live_twice, 2, **ONCE)
    assert results == [("second", [2.0] * 4, [5, 6, 7]), ([7.0] * 4, [5, 6, 7])]


def lose_one(transport: Transport, then: str) -> str:
    if transport.rank == 2:
        die()
    if transport.rank == 1:
        transport.recv(0, "go home")
        return "worker"
    with pytest.raises(PeerLost):
        transport.recv(ANY, "nothing")
    if then == "raise":
        raise RuntimeError("the server is broken")
    transport.isend(None, 1, "go home")
    return "server"


def test_the_death_of_an_expendable_rank_ends_nothing_and_hides_nothing() -> None:
    assert launch(lose_one, 3, "go on", timeout=LIMIT, expendable=[1, 2]) == ["server", "worker", None]
    with pytest.raises(RunFailed, match=r"^rank 0 \(worker\) raised RuntimeError: the server is broken"):
        launch(lose_one, 3, "raise", timeout=LIMIT, expendable=[1, 2])


def test_restarts_have_a_limit() -> None:
    with pytest.raises(UsageError, match="--restarts 1000: at most"):
        launch(lose_one, 3, "go on", expendable=[1, 2], restarts=1000)
