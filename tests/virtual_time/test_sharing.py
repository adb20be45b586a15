"""Messages that share cards: fairly they arrive when a slow and plain reference says, whatever joins and leaves."""

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.networks.card import Card
from gradwire.virtual_time.network import Network, OneSwitch, Racks
from gradwire.virtual_time.sharing import Fair, Flow
from gradwire.virtual_time.world import World

BANDWIDTH, LATENCY = 1000.0, 0.5  # bytes a second, seconds
Send = tuple[float, int, int, int]  # at what time, from and to which rank, how many bytes
times = st.integers(0, 12).map(lambda tenths: tenths / 10)
pairs = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(lambda pair: pair[0] != pair[1])
sends = st.lists(st.tuples(times, pairs, st.integers(0, 900)), max_size=12).map(
    lambda drawn: sorted((at, *pair, nbytes) for at, pair, nbytes in drawn)
)


def reference(network: Network, plan: list[Send]) -> list[float]:
    """Return when each message arrives: every card divides its bandwidth anew whenever anything begins or ends."""
    left = [{id(card): float(nbytes) for card in network.path(src, dst)} for _, src, dst, nbytes in plan]
    cards = {id(card): card.bandwidth for card in network.cards()}
    ends: list[float] = [math.inf] * len(plan)
    time = 0.0
    while math.inf in ends:
        begun = []
        for i, (at, src, dst, _) in enumerate(plan):
            before = [j for j in range(i) if plan[j][1:3] == (src, dst) and ends[j] > time]
            if at <= time and ends[i] == math.inf and not before:
                begun.append(i)
        for i in begun:
            if max(left[i].values()) < 1e-9:
                ends[i] = time
        if any(ends[i] == time for i in begun):
            continue
        passing = {card: [i for i in begun if left[i].get(card, 0) >= 1e-9] for card in cards}
        rates = {card: cards[card] / len(passing[card]) for card in cards if passing[card]}
        steps = [left[i][card] / rate for card, rate in rates.items() for i in passing[card]]
        step = min([*steps, *(at - time for at, *_ in plan if at > time)])
        for card, rate in rates.items():
            for i in passing[card]:
                left[i][card] -= rate * step
        time += step
    return [end + network.latency for end in ends]


def arrivals(network: Network, plan: list[Send]) -> list[float]:
    return [arrived for _, arrived in ends(network, plan)]


def ends(network: Network, plan: list[Send]) -> list[tuple[float, float]]:
    """Return when each message has left its sender's card, and when it arrives."""
    world, found, left = World(network), [math.inf] * len(plan), [math.inf] * len(plan)

    def leave(i: int, at: float) -> None:
        left[i] = at

    def arrive(i: int) -> None:
        found[i] = world.time

    for i, (at, src, dst, nbytes) in enumerate(plan):
        world.sharing.send(Flow((src, dst), network.path(src, dst), nbytes, partial(leave, i), partial(arrive, i)), at)
    world.run()
    return [*zip(left, found, strict=True)]


@given(sends)
@pytest.mark.parametrize("racks", [False, True])
def test_messages_that_share_cards_arrive_when_the_reference_says(racks: bool, plan: list[Send]) -> None:
    network = Racks(4, BANDWIDTH, LATENCY, 2, BANDWIDTH / 2) if racks else OneSwitch(4, BANDWIDTH, LATENCY)
    assert arrivals(network, plan) == pytest.approx(reference(network, plan), abs=1e-6)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=12), st.floats(0.2, 1))
def test_a_card_is_busy_until_all_is_through_whatever_the_weights(flows: list[int], late: float) -> None:
    card = Card("card", BANDWIDTH, late=late)
    for i, nbytes in enumerate(flows):
        card.join(nbytes, 1.0, i)
    left = []
    while (end := card.next_end()) < math.inf:
        left.append((end, card.leave()))
    assert left == sorted(left), "they leave in the order of their ends"
    assert left[-1][0] == pytest.approx(1 + sum(flows) / BANDWIDTH)
    weights = [1.0] + [late] * (len(flows) - 1)
    first = min(range(len(flows)), key=lambda i: flows[i] / weights[i])
    share = weights[first] / sum(weights)
    assert left[0][0] == pytest.approx(1 + flows[first] / (BANDWIDTH * share))


def test_a_message_has_left_its_sender_when_that_one_card_is_through() -> None:
    plan = [(0.0, 1, 0, 300), (0.0, 2, 0, 300), (0.1, 1, 3, 100)]
    sent, shared, later = ends(OneSwitch(4, BANDWIDTH, LATENCY), plan)
    assert sent == pytest.approx((0.4, 0.6 + LATENCY)), "its card was shared with the third"
    assert shared == pytest.approx((0.3, 0.6 + LATENCY))
    assert later == pytest.approx((0.3, 0.3 + LATENCY))


def test_a_network_is_as_new_in_every_launch() -> None:
    network = OneSwitch(4, BANDWIDTH, LATENCY)
    first = World(network)
    first.sharing.send(Flow((1, 0), network.path(1, 0), 10_000, None, lambda: None), 0.0)
    first.stop()
    plan = [(0.0, 1, 0, 100), (0.0, 2, 0, 100)]
    assert arrivals(network, plan) == pytest.approx([0.2 + LATENCY] * 2)
    assert network.receives[0].nbytes == 200


def test_who_comes_late_has_less_of_its_receivers_card_only() -> None:
    plan = [(0.0, 1, 0, 100), (0.0, 2, 0, 100), (0.0, 3, 1, 100), (0.0, 3, 2, 100)]
    seen = arrivals(OneSwitch(4, BANDWIDTH, LATENCY, late=0.5), plan)
    assert seen == pytest.approx([seconds + LATENCY for seconds in (0.15, 0.2, 0.2, 0.2)])
    assert isinstance(World(OneSwitch(4, BANDWIDTH, LATENCY)).sharing, Fair)
