"""Every gradient to everyone: the same bits on all ranks, added in the order of ranks."""

import torch

from strategies.collectives import gather_and_add
from tests.ranks import virtual_time
from transports.base import Transport


def vector_of(rank: int) -> torch.Tensor:
    return torch.randn(101, generator=torch.Generator().manual_seed(rank))


def added(transport: Transport) -> list[float]:
    vector = vector_of(transport.rank)
    transport.sleep(0.1 * (transport.rank * 3 % 5))  # they come in another order
    gather_and_add(vector, transport)
    return vector.tolist()


def test_it_adds_in_the_order_of_ranks_not_in_that_of_arrival() -> None:
    expected = torch.zeros(101)
    for rank in range(5):
        expected += vector_of(rank)
    other = sum((vector_of(rank) for rank in reversed(range(5))), torch.zeros(101))
    assert not torch.equal(expected, other), "the order decides the last bit"
    assert virtual_time(5).launch(added, 5) == [expected.tolist()] * 5
