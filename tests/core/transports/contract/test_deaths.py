"""What `gradwire.core.transports.base` promises when a peer dies, on every transport that tells of it.

Above each test stands what its ranks run.
"""

from contextlib import suppress
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.messages import PeerLost
from tests.core.transports.samples import MILLION, die
from tests.ranks import engine_named, outcome, run_with_deaths, values


def send_and_die(transport: Transport, how: str, src: int, in_place: bool) -> Any:
    """Rank 2 sends and dies; rank 0 looks at its messages only when rank 1 has seen the death."""
    own = transport.allocate(1000)
    if transport.rank == 2:
        own.fill_(2)
        transport.isend(own, 0, "whole").wait()  # hands out the memory, which cannot be done by the dead
        works = [transport.isend(number, 0, "x") for number in range(50)]
        works += [transport.isend(tensor, 0, "tensor") for tensor in (torch.arange(1000), torch.empty(0))]
        slices = [transport.isend(own[:10], 0, "slice"), transport.isend(own[990:], 0, "slice")]
        # What is read in place is sent at once; it is not done before rank 0 has read it.
        for work in works if in_place else works + slices:
            work.wait()
        die(how)
    if transport.rank == 1:
        lost = outcome(transport.recv, 2, "x")
        transport.isend(None, 0, "it is dead")
        transport.recv(0, "go home")
        return lost
    transport.recv(2, "whole").release()
    transport.recv(1, "it is dead")
    seen = [
        [transport.recv(src, "x").object for _ in range(50)],
        *([values(transport.recv(src, tag)) for _ in range(2)] for tag in ("tensor", "slice")),
        [outcome(transport.recv, 2, tag) for tag in ("x", "tensor", "x")],
        [outcome(transport.isend, 1, 2, "x") for _ in range(3)],
        outcome(transport.recv, 2, "x", timeout=0),
    ]
    transport.isend(None, 1, "go home")
    return seen


@pytest.mark.parametrize(("how", "src"), [("SIGKILL", 2), ("exit", ANY)])
def test_what_a_dead_rank_had_sent_is_delivered_before_its_death(engine_that_survives: str, how: str, src: int) -> None:
    in_place = engine_named(engine_that_survives).in_place
    seen, lost = run_with_deaths(engine_that_survives, send_and_die, 3, how, src, in_place), ("PeerLost", 2)
    assert seen[1] == lost
    assert seen[0] == [list(range(50)), [list(range(1000)), []], [[2] * 10] * 2, [lost] * 3, [lost] * 3, lost]


def wait_for_anybody_while_all_die(transport: Transport, how: str) -> Any:
    """Rank 2 dies first; the others when rank 0 has heard from them."""
    if transport.rank != 0:
        if transport.rank != 2:
            transport.recv(0, "send")
            transport.isend(transport.rank, 0, "x")
        transport.recv(0, "die")
        die(how)
    transport.isend(None, 2, "die")
    seen = [outcome(transport.recv, ANY, "x")]
    seen += [outcome(transport.recv, ANY, "x", timeout=0), outcome(transport.recv, ANY, "another", timeout=0)]
    for peer in (1, 3):
        transport.isend(None, peer, "send")
        seen.append(transport.recv(ANY, "x").object)
    seen += [outcome(transport.recv, ANY, "x", timeout=0.1), outcome(transport.recv, 2, "x")]
    for peer in (1, 3):
        transport.isend(None, peer, "die")
    return [*seen, sorted(outcome(transport.recv, ANY, "x") for _ in range(2)), outcome(transport.recv, ANY, "x")[0]]


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_recv_from_any_tells_each_death_once_and_goes_on_while_one_lives(engine_that_survives: str, how: str) -> None:
    seen = run_with_deaths(engine_that_survives, wait_for_anybody_while_all_die, 4, how)
    lost, late = ("PeerLost", 2), ("WaitTimeout", "rank 0 waited 0.1 s for 'x' from rank 1, 3")
    assert seen == {0: [lost, None, None, 1, 3, late, lost, [("PeerLost", 1), ("PeerLost", 3)], "PeerLost"]}


def die_with_work_outstanding(transport: Transport) -> Any:
    """Rank 2 keeps a slice, never asks for the rest, and dies while rank 0 waits and rank 1 has much more for it."""
    own = transport.allocate(1000)
    if transport.rank == 2:
        transport.recv(0, "slice")
        transport.recv(0, "about to wait")
        die("SIGKILL")
    if transport.rank == 1:
        works = [transport.isend(torch.ones(MILLION), 2, "much") for _ in range(10)]
        transport.isend(None, 0, "have sent")
        return [*told_of_the_death(transport), all(work.done for work in works)]
    works = [transport.isend(own[:10], 2, "slice"), transport.isend(own, 2, "unread")]
    transport.recv(1, "have sent")
    transport.isend(None, 2, "about to wait")
    with suppress(PeerLost):  # where the death is known already
        works.append(transport.isend(torch.ones(5 * MILLION), 2, "large"))
    for work in works:
        work.wait()
    return [*told_of_the_death(transport), all(work.done for work in works)]


def told_of_the_death(transport: Transport) -> list[Any]:
    seen = [outcome(transport.recv, 2, "x"), outcome(transport.recv, 2, "x", timeout=0)]
    return [*seen, outcome(transport.isend, 1, 2, "x"), outcome(transport.barrier)[0], transport.is_gone(2)]


def test_everybody_is_told_of_a_death_and_what_was_sent_to_the_dead_counts_as_done(engine_that_tells: str) -> None:
    told = [("PeerLost", 2)] * 3 + ["PeerLost", True]
    seen = run_with_deaths(engine_that_tells, die_with_work_outstanding, 3)
    assert seen == {0: [*told, True], 1: [*told, True]}
