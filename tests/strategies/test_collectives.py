"""Collectives: what comes out, and what is sent to whom."""

from functools import partial

import pytest
import torch

from gradwire.core.transports.base import Transport
from gradwire.networks.graph import complete
from strategies.all_reduce.double_tree import double_tree, neighbours
from strategies.all_reduce.halving_doubling import halving_doubling
from strategies.all_reduce.hierarchical_ring import hierarchical_ring
from strategies.all_reduce.recursive_doubling import recursive_doubling
from strategies.all_reduce.swing import swing
from strategies.all_reduce.synthesised import run_schedule, synthesise
from strategies.collectives import (
    AllReduce,
    all_gather,
    average,
    broadcast,
    gather_and_add,
    naive_all_reduce,
    reduce_scatter,
    ring_all_reduce,
)
from tests.ranks import virtual_time


def in_racks(vector: torch.Tensor, transport: Transport, n: int, rack: int) -> int:
    return hierarchical_ring(vector, transport, n, min(rack, transport.world_size))


def synthesised(vector: torch.Tensor, transport: Transport, n: int) -> int:
    return run_schedule(vector, transport, n, synthesise(complete(transport.world_size), 1000))


ALL_REDUCES: dict[str, AllReduce] = {
    "ring": ring_all_reduce,
    "naive": naive_all_reduce,
    "everyone": gather_and_add,
    "recursive doubling": recursive_doubling,
    "halving-doubling": halving_doubling,
    "swing": swing,
    "double tree": partial(double_tree, segments=3),
    "synthesised": synthesised,
    "racks of 2": partial(in_racks, rack=2),
    "racks of 3": partial(in_racks, rack=3),
}


def first(rank: int, length: int) -> torch.Tensor:
    """What a rank begins with: whole numbers, so that sums are exact in any order."""
    return torch.arange(length, dtype=torch.float64) + 1000.0 * rank


# What comes out: of all-reduces in `tests/every_order/test_contributions.py`


def each_once(transport: Transport, length: int) -> tuple[int, list[list[float]]]:
    """Return the sum of the n of all ranks, and what comes out of each of the other collectives."""
    N, r = transport.world_size, transport.rank
    scattered, gathered, mean, same = (
        transport.allocate(length, torch.float64).copy_(first(r, length)) for _ in "1234"
    )
    total, works = reduce_scatter(scattered.tensor_split(N), transport, 7 + r)
    for work in [*works, *all_gather(gathered.tensor_split(N), transport)]:
        work.wait()
    average(mean, transport)
    broadcast(same, transport, "any", root=N - 1)
    own = scattered.tensor_split(N)[(r + 1) % N]
    transport.barrier()
    return total, [vector.tolist() for vector in (own, gathered, mean, same)]


@pytest.mark.parametrize("N", [1, 2, 3, 5, 8])
def test_sums_chunks_means_and_the_numbers_beside(N: int) -> None:
    for length in sorted({0, 1, N - 1, N, N + 1, 101}):
        firsts = torch.stack([first(rank, length) for rank in range(N)])
        sums = firsts.sum(0).tensor_split(N)
        chunks = torch.cat([firsts[(c - 1) % N].tensor_split(N)[c] for c in range(N)])
        for r, found in enumerate(virtual_time(N).launch(each_once, N, length)):
            expected = [sums[(r + 1) % N], chunks, firsts.mean(0), firsts[-1]]
            assert found == (sum(7 + rank for rank in range(N)), [vector.tolist() for vector in expected])


# Who sends what to whom


def partners(N: int, name: str) -> list[list[int]]:
    """Of each rank, those that it sends to, each with how often, in one list."""

    def count(transport: Transport) -> list[int]:
        ALL_REDUCES[name](transport.allocate(13), transport, 1)
        return sorted(transport.messages_sent.elements())

    return virtual_time(N).launch(count, N)


def test_the_partners_are_those_of_the_papers() -> None:
    assert partners(8, "recursive doubling") == [sorted(r ^ d for d in (1, 2, 4)) for r in range(8)]
    assert partners(8, "halving-doubling") == [sorted(2 * [r ^ d for d in (1, 2, 4)]) for r in range(8)]
    away = [1, -1, 3]  # of an even rank; of an odd one the other way
    swung = [sorted(2 * [(r + (-1) ** r * d) % 8 for d in away]) for r in range(8)]
    assert partners(8, "swing") == swung
    assert partners(6, "racks of 3") == [sorted([r - r % 3 + (r + 1) % 3] * 4 + [(r + 3) % 6] * 2) for r in range(6)]
    paired = [r for r, sent in enumerate(partners(11, "recursive doubling")) if len(sent) == 1]
    assert paired == [0, 2, 4], "8 of 11 take part, 3 of them for two"


@pytest.mark.parametrize("N", [2, 3, 8, 13, 33])
def test_both_trees_have_all_ranks_and_a_leaf_of_one_is_no_leaf_of_the_other(N: int) -> None:
    inner = []
    for tree in (0, 1):
        nodes = [neighbours(rank, N, tree) for rank in range(N)]
        (root,) = (rank for rank, (parent, _) in enumerate(nodes) if parent is None)
        reached = [root]
        for rank in reached:
            assert len(nodes[rank][1]) <= 2
            assert all(nodes[child][0] == rank for child in nodes[rank][1])
            reached += nodes[rank][1]
        assert sorted(reached) == list(range(N))
        inner.append({rank for rank, (_, children) in enumerate(nodes) if children})
    assert inner[0] & inner[1] <= ({0} if N % 2 else set())


# The order of a sum


VECTORS = torch.randn(5, 101, generator=torch.Generator().manual_seed(0))


def added(transport: Transport) -> list[float]:
    vector = VECTORS[transport.rank].clone()
    transport.sleep(0.1 * (transport.rank * 3 % 5))  # they come in another order
    gather_and_add(vector, transport)
    return vector.tolist()


def test_it_adds_in_the_order_of_ranks_not_in_that_of_arrival() -> None:
    expected, other = (sum(order, torch.zeros(101)) for order in (VECTORS, VECTORS.flip(0)))
    assert not torch.equal(expected, other), "the order decides the last bit"
    assert virtual_time(5).launch(added, 5) == [expected.tolist()] * 5
