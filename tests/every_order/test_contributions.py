"""The checker of all-reduces: it finds what is planted, by rank and round, and nothing in those of the house."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from gradwire.core.transports.base import Transport
from gradwire.every_order.contributions import check_all_reduce
from strategies.all_reduce.recursive_doubling import recursive_doubling
from strategies.collectives import AllReduce, all_gather, reduce_scatter, ring_all_reduce
from tests.strategies.test_collectives import ALL_REDUCES


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [((1, 2, 3, 5, 8, 17), (0, 19)), pytest.param(range(1, 18), range(41), marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_those_of_the_house_have_no_fault(name: str, sizes: Sequence[int], lengths: Sequence[int]) -> None:
    for N in sizes:
        for length in lengths:
            assert check_all_reduce(ALL_REDUCES[name], N, length) is None


# Planted


def ring_that_returns(vector: torch.Tensor, transport: Transport, n: int) -> int:
    chunks = vector.tensor_split(transport.world_size)
    n, _ = reduce_scatter(chunks, transport, n)
    all_gather(chunks, transport)
    return n


def exchange(vector: torch.Tensor, transport: Transport, n: int, wrong: str) -> int:
    """Two ranks give each other their vectors, with one mistake."""
    came = transport.allocate(len(vector), vector.dtype)
    sends = {"too early": came, "adds where it reads": vector}.get(wrong, vector.clone())
    if wrong == "not received":
        transport.isend(vector.clone(), 1 - transport.rank, "spare")
    sent = transport.isend(sends, 1 - transport.rank, "sum", n=n)
    received = transport.recv(1 - transport.rank, "sum")
    if wrong == "released":
        received.release()
        sent.wait()
    total = received.vector.add_(vector).clone() if wrong == "adds where it reads" else vector.clone()
    if wrong == "released":
        vector.copy_(received.vector)
    else:
        vector.copy_(total.add_(received.vector))
    n += received.n
    received.release()
    sent.wait()
    return n


def with_one_mistake(wrong: str) -> AllReduce:
    return partial(exchange, wrong=wrong)


# That one overwrites what may not have been read, adds twice, or waits for ever, `tests/lessons` plants.
PLANTED: list[tuple[AllReduce, int, int, str]] = [
    (ring_that_returns, 4, 8, "rank 2, round 6: returns before rank 3 has read what it sent in round 4"),
    (with_one_mistake("too early"), 2, 3, "rank 0, round 1: sends to rank 1 what has not come"),
    (with_one_mistake("released"), 2, 4, "rank 0, round 1: has what has not come, elements 0 to 3"),
    (with_one_mistake("not received"), 2, 4,
     "rank 0, round 1: has ended without the 'spare' that rank 1 sent in round 1"),
    (with_one_mistake("adds where it reads"), 2, 4, "rank 1, round 1: writes into what rank 0 sent"),
    (lambda vector, transport, n: n, 2, 4, "rank 0, round 1: ends without rank 1's contribution, elements 0 to 3"),
    (lambda *given: recursive_doubling(*given) and 7, 2, 4, "rank 0, round 1: returns another n than the sum of all"),
]  # fmt: skip


@pytest.mark.parametrize(("all_reduce", "N", "length", "fault"), PLANTED)
def test_what_is_planted_is_found(all_reduce: AllReduce, N: int, length: int, fault: str) -> None:
    assert check_all_reduce(all_reduce, N, length) == f"N = {N}, length {length}: {fault}"


def test_a_vector_has_as_many_elements_as_there_are_bits_for_their_numbers() -> None:
    assert check_all_reduce(ring_all_reduce, 24, 1364) is None
    with pytest.raises(
        ValueError, match="length 1365: the numbers of so many elements need more bits; take at most 1364"
    ):
        check_all_reduce(ring_all_reduce, 24, 1365)


@pytest.mark.parametrize("N", [0, 25])
def test_so_many_ranks_at_most(N: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to 24"):
        check_all_reduce(ring_all_reduce, N, 1)
