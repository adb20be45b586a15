"""Virtual time: when messages arrive, that everybody's clock is right, and that it is the same every time."""

import copy
from itertools import chain
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import ANY, Transport
from gradwire.core.transports.throttle import FAIR, IN_ORDER
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import Network, OneSwitch, Racks
from gradwire.virtual_time.ranks import Deadlock
from tests.ranks import virtual_time

MS, US = 1e-3, 1e-6  # latency, and what a byte takes, in the cluster of `virtual_time`


def deliver(transport: Transport, ways: list[tuple[int, int]], nbytes: int) -> tuple[float, list[float]]:
    """Send along the ways; return when all was sent, and when what was received had come."""
    rank, arrived = transport.rank, []
    for _, dst in (way for way in ways if way[0] == rank):
        transport.isend(torch.zeros(nbytes, dtype=torch.uint8), dst, "x")
    sent = transport.now()
    for _ in (way for way in ways if way[1] == rank):
        transport.recv(ANY, "x").release()
        arrived.append(transport.now())
    return sent, arrived


ALONE, CROSS, TO_ONE = [(0, 1)], [(0, 2), (1, 3)], [(1, 0), (2, 0), (3, 0)]
TO_ALL = [(0, 1), (0, 2), (0, 3)]
FAIRLY, SWITCH = OneSwitch(4, 1 / US, MS), OneSwitch(4, 1 / US, MS, sharing=IN_ORDER)


def racks(uplink: float, sharing: str) -> Racks:
    return Racks(4, 1e6, MS, racks=2, rack_bandwidth=uplink, sharing=sharing)


@pytest.mark.parametrize(
    ("network", "ways", "nbytes", "times"),
    [
        *((SWITCH, ALONE, nbytes, {1: [MS + nbytes * US]}) for nbytes in (0, 1, 5000)),
        (SWITCH, TO_ONE, 1000, {0: [2 * MS, 3 * MS, 4 * MS]}),
        (SWITCH, TO_ALL, 1000, {1: [2 * MS], 2: [3 * MS], 3: [4 * MS]}),
        (racks(1e6, IN_ORDER), CROSS, 1000, {2: [2 * MS], 3: [3 * MS]}),
        (racks(0.5e6, IN_ORDER), CROSS, 1000, {2: [3 * MS], 3: [5 * MS]}),
        *((FAIRLY, ALONE, nbytes, {1: [MS + nbytes * US]}) for nbytes in (0, 5000)),
        (FAIRLY, TO_ONE, 1000, {0: [4 * MS, 4 * MS, 4 * MS]}),
        (FAIRLY, TO_ALL, 1000, {1: [4 * MS], 2: [4 * MS], 3: [4 * MS]}),
        (FAIRLY, [(0, 1), (0, 1), (0, 2)], 1000, {1: [3 * MS, 4 * MS], 2: [3 * MS]}),
        (racks(0.5e6, FAIR), CROSS, 1000, {2: [5 * MS], 3: [5 * MS]}),
    ],
)
def test_a_message_takes_its_latency_its_bytes_and_turns_on_cards_and_its_sender_does_not_wait(
    network: Network, ways: list[tuple[int, int]], nbytes: int, times: dict[int, list[float]]
) -> None:
    network = copy.deepcopy(network)
    time = VirtualTime(network, lambda *_: 0.0)
    for rank, (sent, arrived) in enumerate(time.launch(deliver, 4, ways, nbytes)):
        assert sent == 0.0
        assert arrived == pytest.approx(times.get(rank, []))
    for counted, end in ((network.sends, 0), (network.receives, 1)):
        assert [card.nbytes for card in counted] == [nbytes * [way[end] for way in ways].count(r) for r in range(4)]
    assert time.now() == pytest.approx(max(chain(*times.values())))
    assert network.receives[0].busy == pytest.approx(network.receives[0].nbytes * US)


# Whose turn it is


def wait_for_what_never_comes(transport: Transport) -> None:
    """Rank 0 waits for its memory, of which rank 1 keeps a slice; rank 1 for rank 2, which waits for rank 0."""
    if transport.rank == 0:
        work = transport.isend(transport.allocate(3), 1, "kept")
        transport.recv(1, "received")
        assert not work.done
        work.wait()
    elif transport.rank == 1:
        transport.recv(0, "kept")  # and never released
        transport.isend(None, 0, "received")
    transport.recv((transport.rank + 1) % 3, "never")


def test_a_deadlock_is_told_as_what_it_is() -> None:
    with pytest.raises(Deadlock) as caught:
        virtual_time(3).launch(wait_for_what_never_comes, 3)
    assert str(caught.value) == (
        "deadlock after 0.002012 virtual s: rank 0 waits for the release of 'kept' by rank 1; "
        "rank 1 waits for 'never' from rank 2; rank 2 waits for 'never' from rank 0"
    )


# What a process would have of its own


def draw(transport: Transport) -> list[Any]:
    seen: list[Any] = []
    right, left = (transport.rank + 1) % transport.world_size, (transport.rank - 1) % transport.world_size
    for number in range(6):
        seen.append(torch.rand(2).tolist())
        with torch.set_grad_enabled(number % 2 == 0):
            transport.isend(None, right, "x")
            transport.recv(left, "x")
            seen.append(torch.is_grad_enabled())
    return seen


def test_each_rank_has_its_own_random_state_and_gradient_mode() -> None:
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    ranks = virtual_time(3).launch(draw, 3, seed=5)
    for rank, seen in enumerate(ranks):
        generator = torch.Generator().manual_seed(5 + 1 + rank)
        assert seen == [value for i in range(6) for value in (torch.rand(2, generator=generator).tolist(), i % 2 == 0)]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, True)
