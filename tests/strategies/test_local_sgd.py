"""Local SGD: at its ends it is the ring, FedAvg and DiLoCo."""

import pytest
import torch

from strategies import LocalSGD
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task

N = 3


@pytest.mark.parametrize("steps", [4, 5, 7])
def test_the_model_is_the_mean_of_the_replicas_also_in_a_round(steps: int) -> None:
    def in_the_middle(rank: Rank) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
        for i in range(steps):
            rank.take(i)
        return rank.x(), rank.strategy.model().clone(), dict(rank.transport.recorder.meters)

    found = on_ranks(Task(LocalSGD(local_steps=4), N, "plain"), in_the_middle)
    own = torch.stack([x for x, _, _ in found])
    for _, model, _ in found:
        torch.testing.assert_close(model, own.mean(0), rtol=1e-12, atol=1e-14)
    expected = ((own - own.mean(0)).square().sum(1).mean() ** 0.5 / own.mean(0).norm()).item()
    assert found[0][2]["replica_distance"] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert (expected < 1e-12) == (steps == 4)
