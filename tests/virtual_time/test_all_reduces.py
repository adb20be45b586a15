"""All-reduces take the time of their closed forms: exactly for powers of two, else within the bounds they state."""

import dataclasses
from typing import Any

import pytest

from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.transports.base import Transport
from gradwire.core.transports.throttle import FAIR, IN_ORDER
from gradwire.networks.predict import predict
from gradwire.virtual_time.launcher import VirtualTime
from gradwire.virtual_time.network import OneSwitch
from strategies import (
    AllGather,
    DoubleTree,
    HalvingDoubling,
    HierarchicalRing,
    NaiveAllReduce,
    RecursiveDoubling,
    RingAllReduce,
    Swing,
)
from strategies.all_reduce.all_reduce_sgd import AllReduceSGD

SHARINGS = pytest.mark.parametrize("sharing", [FAIR, IN_ORDER])
FOLDED: list[AllReduceSGD] = [RecursiveDoubling(), HalvingDoubling(), Swing(), HierarchicalRing(rack=4)]
RATIOS = (1e-3, 1.0, 1e3)  # of the seconds of a vector's bytes to those of a latency


def seconds_of(
    strategy: AllReduceSGD, N: int, nbytes: int, ratio: float, latency: float = 1.0, **network: Any
) -> float:
    """The virtual time until the last rank has the sum of vectors of so many bytes, which take `ratio` seconds."""

    def be(transport: Transport) -> float:
        own = dataclasses.replace(strategy)
        own.transport = transport
        own.all_reduce(transport.allocate(nbytes // 4), 1)
        return transport.now()

    switch = OneSwitch(N, nbytes / ratio, latency, late=0.8, **network)
    return max(VirtualTime(switch, lambda *_: 0.0, compute=False).launch(be, N))


def predicted(strategy: AllReduceSGD, N: int, nbytes: int, ratio: float, sharing: str = FAIR) -> float:
    found = predict(strategy, N, nbytes, 0.0, nbytes / ratio, 1.0, sharing=sharing)
    assert found is not None
    return found


@SHARINGS
@pytest.mark.parametrize("N", [2, 8, 16])
def test_powers_of_two_take_the_time_of_the_closed_form(N: int, sharing: str) -> None:
    nbytes = 4 * 64 * N
    strategies = [RingAllReduce(), *FOLDED[:3], *(HierarchicalRing(rack=k) for k in (1, 2, 4, 8, 16) if k <= N)]
    for strategy in strategies:
        for ratio in RATIOS:
            expected = predicted(strategy, N, nbytes, ratio)
            assert seconds_of(strategy, N, nbytes, ratio, sharing=sharing) == pytest.approx(expected, rel=1e-9), (
                strategy
            )
    for segments in (1, 2, 8, 32):
        for ratio in RATIOS:
            expected = predicted(DoubleTree(segments=segments), N, nbytes, ratio, sharing)
            found = seconds_of(DoubleTree(segments=segments), N, nbytes, ratio, sharing=sharing)
            assert (0.999 if sharing == FAIR else 0.93) <= found / expected <= 1.02, (segments, ratio)


@SHARINGS
@pytest.mark.parametrize("N", [3, 6, 9, 13])
def test_folded_ones_take_at_most_one_vector_more_in_order_or_twice_the_bytes(N: int, sharing: str) -> None:
    nbytes = 4 * 64 * N
    for strategy in FOLDED:
        if strategy == FOLDED[3] and N in (3, 12, 24):  # fewer than a rack, or whole racks
            continue
        path = strategy.cost().in_order or strategy.cost().path
        assert path is not None
        messages, sent = evaluate_cost(strategy, path, N, nbytes)
        for ratio in RATIOS:
            vectors = sent / nbytes
            least = messages - 1 + (vectors - 1) * ratio
            most = messages + (vectors + 1 if sharing == IN_ORDER else 2 * vectors) * ratio
            found = seconds_of(strategy, N, nbytes, ratio, sharing=sharing)
            assert least * (1 - 1e-3) <= found <= most * (1 + 1e-3), (strategy, ratio)
            if strategy != FOLDED[3] and ratio == RATIOS[0]:
                assert found == pytest.approx(messages + vectors * ratio, rel=2e-3), "messages are counted exactly"


@SHARINGS
def test_a_message_alone_occupies_its_cards_for_the_overhead(sharing: str) -> None:
    N, nbytes, overhead = 8, 4 * 64 * 8, 3.0
    fair = [NaiveAllReduce()] if sharing == FAIR else []  # in order its form is of one step after the other
    for strategy in (RingAllReduce(), HalvingDoubling(), RecursiveDoubling(), AllGather(), *fair):
        expected = predict(strategy, N, nbytes, 0.0, float(nbytes), 1.0, sharing=sharing, overhead=overhead)
        assert seconds_of(strategy, N, nbytes, 1.0, sharing=sharing, overhead=overhead) == pytest.approx(expected)
