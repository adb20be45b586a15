"""Messages that are held back: when they arrive, and in what order."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.throttle import IN_ORDER
from gradwire.core.transports.timing import now
from gradwire.networks.link import Link
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from tests.core.transports.samples import pair
from tests.ranks import HELD_BACK, LIMIT, held_back, launch, run

BANDWIDTH, LATENCY = 1e6, 1e-3  # bytes a second, seconds
Sends = list[tuple[int, int, float]]  # of each sender: bytes, to whom of two, seconds of computing before


# The numbers


def noting() -> tuple[Link, Callable[[Any], Callable[[], None]], list[Any]]:
    """Return a link, what makes a function that notes a value, and the values noted so far."""
    seen: list[Any] = []
    return Link(BANDWIDTH, LATENCY), lambda value: partial(seen.append, value), seen


def test_what_has_not_come_whole_holds_up_what_follows() -> None:
    link, note, seen = noting()
    first = link.hold(1, 1000, 0.0, None)
    link.hold(2, 0, 0.0, note("second"))
    assert not link.happen(10.0)
    assert link.due(10.0) == math.inf, "only its coming changes anything"
    first.happen = note("first")
    assert link.due(10.0) == 0
    assert link.happen(10.0)
    assert seen == ["first", "second"]


def test_what_follows_a_ranks_messages_waits_for_all_of_them() -> None:
    link, note, seen = noting()
    link.follow(1, note("nothing was held"))
    link.hold(1, 1000, 1e-3, note("message"))
    link.hold(1, 1000, 0.0, note("another"))  # earlier, as a clock may say that is another machine's
    link.follow(1, note("death"))
    link.follow(2, note("of another rank"))
    link.happen(1e-3)
    assert seen == ["nothing was held", "of another rank"]
    link.happen(1.0)
    assert seen[2:] == ["message", "another", "death"]


def test_what_was_forgotten_never_arrives_and_holds_nothing_up() -> None:
    link, note, seen = noting()
    link.hold(2, 10, 0.0, note("of another rank"))
    link.hold(1, 100_000_000, 0.0, note("of the dead"))
    link.hold(1, 0, 1000.0, note("of the dead"))
    link.happen(1.0)
    link.forget(1)
    link.hold(1, 0, 2.0, note("of its next life"))
    link.follow(1, note("goodbye"))
    link.happen(9999.0)
    assert seen == ["of another rank", "of its next life", "goodbye"]


# The same as in virtual time


def sends_to_the_first(transport: Transport, plans: list[Sends]) -> Any:
    """Ranks 2 and on send to ranks 0 and 1, which note who came when."""
    if transport.rank >= 2:
        works = []
        for nbytes, to, pause in plans[transport.rank - 2]:
            transport.sleep(pause)
            works.append(transport.isend(torch.zeros(nbytes, dtype=torch.uint8), to, "x"))
        return None
    n = sum(to == transport.rank for plan in plans for _, to, _ in plan)
    seen = []
    for _ in range(n):
        message = transport.recv(ANY, "x")
        seen.append((message.src, transport.now()))
        message.release()
    return seen


sends = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 1), st.integers(0, 50).map(lambda n: n * 1e-4)))


@given(st.lists(sends, min_size=2, max_size=3))
def test_what_is_held_back_arrives_when_it_does_in_virtual_time(plans: list[Sends]) -> None:
    world_size = len(plans) + 2
    time = VirtualTime(OneSwitch(world_size, BANDWIDTH, LATENCY, sharing=IN_ORDER), lambda *_: 0.0)
    simulated = time.launch(sends_to_the_first, world_size, plans)
    links = [Link(BANDWIDTH, LATENCY) for _ in range(world_size)]
    sent = []
    for src, plan in enumerate(plans, start=2):
        at = 0.0
        for nbytes, to, pause in plan:
            at += pause
            sent.append((at, src, nbytes, to))
    seen: dict[int, list[float]] = {0: [], 1: []}
    reached: list[tuple[int, float, int]] = []
    clock = 0.0
    for at, src, nbytes, to in sorted(sent, key=lambda message: message[0]):
        leaves = links[src].leaves(nbytes, at)
        reached.append((to, round(leaves, 9), src))
        links[to].hold(src, nbytes, leaves, lambda to=to: seen[to].append(clock))  # type: ignore[misc]
    # What reaches a card at the same time, from two ranks, may pass it in either order.
    assume(len({(to, leaves) for to, leaves, _ in reached}) == len(set(reached)))
    for to in (0, 1):
        clock = 0.0
        while (due := links[to].due(clock)) < math.inf:
            clock += max(due, 1e-12)
            links[to].happen(clock)
        assert seen[to] == pytest.approx([time for _, time in simulated[to]], abs=1e-9)


# Real ranks


def exchange(transport: Transport, sizes: list[int]) -> list[float]:
    """Rank 0 sends to all, who tell how long each message took; it tells how long it took until all were released.

    The last figure of each is the seconds of a meeting for which nobody is late.
    """
    vector, took = transport.allocate(max(sizes), torch.uint8), []
    for size in sizes:
        if transport.rank == 0:
            sent = int(now() * 1e9)
            for work in [transport.isend(vector[:size], peer, "x", n=sent) for peer in transport.peers]:
                work.wait()
            took.append(now() - sent / 1e9)
        else:
            message = transport.recv(0, "x")
            took.append(now() - message.n / 1e9)
            message.release()
        transport.barrier()
    t0 = now()
    transport.barrier()
    return [*took, now() - t0]


ONE_BY_DEFAULT = pytest.mark.parametrize(
    "engine_name", [HELD_BACK[0], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in HELD_BACK[1:])]
)


@ONE_BY_DEFAULT
def test_no_message_is_there_before_its_time(engine_name: str) -> None:
    sizes = [0, 100_000, 1_000_000]
    ranks = run(engine_name, exchange, 3, sizes)
    link = held_back(engine_name)
    assert link is not None
    assert max(took.pop() for took in ranks) > 2 * link.latency, "a meeting takes a message there and back"
    for size, released, seconds, other in zip(sizes, *ranks, strict=True):
        alone = size / link.bandwidth + link.latency
        assert seconds > alone - 1e-6
        assert other > alone + size / link.bandwidth - 1e-6, "the two share the sender's card"
        assert released > 2 * size / link.bandwidth - 1e-6, "and must have left it"


def send_past_another(transport: Transport) -> float:
    """Rank 1 sends when rank 2 has sent a long message; rank 0 tells how long after that it has that of rank 1."""
    vector = transport.allocate(1_000_000, torch.uint8)
    if transport.rank == 2:
        work = transport.isend(vector, 0, "x", n=int(now() * 1e9))
        transport.isend(None, 1, "go on")
        work.wait()
    elif transport.rank == 1:
        transport.recv(2, "go on")
        transport.isend(vector[:1], 0, "x")
        transport.recv(0, "end")
    else:
        transport.recv(1, "x").release()
        at = now()
        transport.isend(None, 1, "end")
        with transport.recv(2, "x") as before:
            return at - before.n / 1e9
    return 0.0


@ONE_BY_DEFAULT
def test_what_nobody_has_asked_for_yet_occupies_the_card_too(engine_name: str) -> None:
    link = held_back(engine_name)
    assert link is not None
    assert run(engine_name, send_past_another, 3)[0] > link.seconds(1_000_000)


def send_to_the_dead(transport: Transport) -> Any:
    """Rank 0 sends to rank 1, which is dead, though nobody can know: its last message is held back."""
    if transport.rank == 1:
        transport.isend(None, 0, "x")
        os._exit(3)
    vector = transport.allocate(4)
    while transport._peers[1].open:  # type: ignore[attr-defined]
        transport.recv(1, "nothing", timeout=0)
    transport.isend(vector, 1, "x").wait()
    return transport.recv(1, "x").object


def test_a_message_to_a_dead_rank_is_done() -> None:
    assert launch(send_to_the_dead, 2, timeout=LIMIT, expendable=[1], link=Link(1e6, 0.5))[0] is None


def test_a_release_that_has_come_is_not_waited_for() -> None:
    with pair() as (receiver, sender):
        sender.link = Link(1e9, 0.0)
        work = sender.isend(sender.allocate(3), 0, "x")
        receiver.recv(1, "x").release()
        with mock.patch.object(sender, "_move", side_effect=sender._move) as move:
            work.wait()
        assert [seconds for (_, seconds), _ in move.call_args_list] == [0]
