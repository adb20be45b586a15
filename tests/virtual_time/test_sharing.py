"""Messages that share cards: fairly they arrive when a slow and plain reference says, whatever joins and leaves."""

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transports.card import Card
from virtual_time.network import Network, OneSwitch, Racks
from virtual_time.sharing import Fair
from virtual_time.world import World

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
    world, found = World(network), [math.inf] * len(plan)

    def arrive(i: int) -> None:
        found[i] = world.time

    for i, (at, src, dst, nbytes) in enumerate(plan):
        world.sharing.send((src, dst), network.path(src, dst), nbytes, at, None, partial(arrive, i))
    world.run()
    return found


@settings(deadline=None)
@given(sends)
@pytest.mark.parametrize("racks", [False, True])
def test_messages_that_share_cards_arrive_when_the_reference_says(racks: bool, plan: list[Send]) -> None:
    network = Racks(4, BANDWIDTH, LATENCY, 2, BANDWIDTH / 2) if racks else OneSwitch(4, BANDWIDTH, LATENCY)
    assert arrivals(network, plan) == pytest.approx(reference(network, plan), abs=1e-6)


@given(st.lists(st.tuples(st.integers(1, 900), st.floats(0.5, 1.5)), min_size=1, max_size=12))
def test_a_card_is_busy_until_all_is_through_whatever_the_weights(flows: list[tuple[int, float]]) -> None:
    card = Card("card", BANDWIDTH)
    for i, (nbytes, weight) in enumerate(flows):
        card.join(nbytes, weight, 1.0, i)
    left = []
    while (end := card.next_end()) < math.inf:
        left.append((end, card.leave()))
    assert left == sorted(left), "they leave in the order of their ends"
    assert left[-1][0] == pytest.approx(1 + sum(nbytes for nbytes, _ in flows) / BANDWIDTH)
    first = min(range(len(flows)), key=lambda i: flows[i][0] / flows[i][1])
    share = flows[first][1] / sum(weight for _, weight in flows)
    assert left[0][0] == pytest.approx(1 + flows[first][0] / (BANDWIDTH * share))


def test_weights_differ_by_the_seed_and_are_the_same_in_every_run() -> None:
    plan = [(0.0, src, 0, 100) for src in (1, 2, 3)]
    seen = [arrivals(OneSwitch(4, BANDWIDTH, LATENCY, spread=0.05, seed=seed), plan) for seed in (1, 1, 2)]
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) == 3, "none is quite like another"
    assert max(seen[0]) == pytest.approx(0.3 + LATENCY)
    assert isinstance(World(OneSwitch(4, BANDWIDTH, LATENCY)).sharing, Fair)
