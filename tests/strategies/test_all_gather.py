"""Every gradient to everyone: the steps of the other sums, and the same bits on all ranks, in the order of ranks."""

import pytest
import torch

from strategies import Strategy
from strategies.all_reduce.all_gather import AllGather
from strategies.all_reduce.naive_all_reduce import NaiveAllReduce
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.collectives import gather_and_add
from tests.ranks import virtual_time
from tests.strategies.loops import Task, trajectories
from tests.strategies.test_every_strategy import CASES, one_process
from transports.base import Transport


@pytest.mark.parametrize("n_gpus", [1, 2, 3, 5])
def test_it_takes_the_steps_of_the_ring_of_the_naive_sum_and_of_one_process(n_gpus: int) -> None:
    def steps_of(strategy: Strategy) -> list[torch.Tensor]:
        tasks = [Task(strategy, n_gpus, optimizer, clip_norm) for optimizer, clip_norm in CASES]
        found: list[list[list[list[float]]]] = virtual_time(n_gpus).launch(trajectories, n_gpus, tasks)
        assert all(rank == found[0] for rank in found), "bit-identical on all ranks"
        return [torch.tensor(seen, dtype=torch.float64) for seen in found[0]]

    of_one = [torch.stack(one_process(n_gpus, *case, Task(AllGather(), n_gpus).epochs)) for case in CASES]
    found = steps_of(AllGather())
    for expected in (steps_of(RingAllReduce()), steps_of(NaiveAllReduce()), of_one):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


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
