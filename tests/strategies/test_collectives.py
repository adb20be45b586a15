"""Collectives: what comes out, and what is sent to whom."""

from functools import cache, partial
from typing import Any

import pytest
import torch

from gradwire.core.transports.base import Transport, Work
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
NAMES = [*ALL_REDUCES, "reduce_scatter", "all_gather", "average", "broadcast"]


def first(rank: int, length: int) -> torch.Tensor:
    """What a rank begins with: whole numbers, so that sums are exact in any order."""
    return torch.arange(length, dtype=torch.float64) + 1000.0 * rank


def once(transport: Transport, name: str, length: int) -> dict[str, Any]:
    """Call one of them; report what came out and what was sent."""
    vector = transport.allocate(length, torch.float64)
    vector.copy_(first(transport.rank, length))
    messages, nbytes = transport.messages_sent.copy(), transport.bytes_sent.copy()
    n = 7 + transport.rank
    works: list[Work] = []
    total = 0
    if name in ALL_REDUCES:
        total = ALL_REDUCES[name](vector, transport, n)
    elif name == "reduce_scatter":
        total, works = reduce_scatter(torch.tensor_split(vector, transport.world_size), transport, n)
    elif name == "all_gather":
        works = all_gather(torch.tensor_split(vector, transport.world_size), transport)
    elif name == "average":
        average(vector, transport)
    else:
        broadcast(vector, transport, "any", root=transport.world_size - 1)
    for work in works:
        work.wait()
    found = {
        "vector": vector.tolist(),
        "own": vector.tensor_split(transport.world_size)[(transport.rank + 1) % transport.world_size].tolist(),
        "n": total,
        "messages": [transport.messages_sent[k] - messages[k] for k in range(transport.world_size)],
        "bytes": [transport.bytes_sent[k] - nbytes[k] for k in range(transport.world_size)],
    }
    transport.barrier()
    return found


def lengths_for(N: int) -> list[int]:
    return sorted({0, 1, N - 1, N, N + 1, 13, 101})


@cache
def results(N: int) -> list[dict[tuple[str, int], dict[str, Any]]]:
    def each(transport: Transport) -> dict[tuple[str, int], dict[str, Any]]:
        return {(name, length): once(transport, name, length) for name in NAMES for length in lengths_for(N)}

    return virtual_time(N).launch(each, N)


# What comes out


@pytest.mark.parametrize("N", [1, 2, 3, 5, 8])
def test_sums_chunks_means_and_the_numbers_beside(N: int) -> None:
    """An all-reduce gives the sum to all, reduce_scatter each rank its chunk of it; all_gather puts chunks together."""
    for r, rank in enumerate(results(N)):
        for length in lengths_for(N):
            total = sum((first(other, length) for other in range(N)), torch.zeros(length, dtype=torch.float64))
            for name in (*ALL_REDUCES, "reduce_scatter"):
                assert rank[name, length]["n"] == sum(7 + other for other in range(N))
                assert name == "reduce_scatter" or rank[name, length]["vector"] == total.tolist()
            assert rank["reduce_scatter", length]["own"] == torch.tensor_split(total, N)[(r + 1) % N].tolist()
            chunks = [torch.tensor_split(first((c - 1) % N, length), N)[c] for c in range(N)]
            assert rank["all_gather", length]["vector"] == torch.cat(chunks).tolist()
            assert rank["average", length]["vector"] == (first(0, length) + 1000.0 * (N - 1) / 2).tolist()
            assert rank["broadcast", length]["vector"] == first(N - 1, length).tolist()


# Who sends what to whom


def partners(N: int, name: str) -> list[list[int]]:
    """Of each rank, those that it sends to, each with how often, in one list."""
    return [[peer for peer, n in enumerate(rank[name, 13]["messages"]) for _ in range(n)] for rank in results(N)]


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


def bits(transport: Transport) -> list[list[float]]:
    vectors = [torch.randn(40, generator=torch.Generator().manual_seed(transport.rank)) for _ in ALL_REDUCES]
    for vector, all_reduce in zip(vectors, ALL_REDUCES.values(), strict=True):
        all_reduce(vector, transport, 1)
    return [vector.tolist() for vector in vectors]


@pytest.mark.parametrize("N", [2, 5, 11])
def test_all_ranks_have_the_same_bits(N: int) -> None:
    first, *others = virtual_time(N).launch(bits, N)
    assert all(other == first for other in others)
    assert len({str(of_one) for of_one in first}) > 1 or N == 2, "the order of a sum decides the last bit"


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
