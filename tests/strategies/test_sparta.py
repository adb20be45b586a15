"""Sparta: the same random elements on all ranks become their mean; the others stay as they are."""

import pytest
import torch

from strategies import DESLOC, Gossip, LocalSGD, NoCommunication, Sparta, Strategy
from tests.strategies.kinds import assert_same, on_ranks
from tests.strategies.loops import Rank, Task

N = 3


def test_with_fraction_1_everything_is_averaged() -> None:
    # An unweighted mean: the batches' parts have the same size but in the last step, which is left out.
    one, other = (Task(strategy, N, "plain", epochs=1) for strategy in (Sparta(fraction=1.0), LocalSGD(local_steps=1)))
    assert_same(one, other, 1e-12, steps=3)


def standing(fraction: float, steps: int, seed: int) -> list[list[torch.Tensor]]:
    """Steps without gradients: of each rank x [n] after each, which begins at its rank everywhere."""

    def stand(rank: Rank) -> list[torch.Tensor]:
        rank.strategy.seed = seed
        rank.replica.x.fill_(float(rank.transport.rank))
        seen = list[torch.Tensor]()
        for _ in range(steps):
            rank.constant_step(0.0, 1)
            seen.append(rank.x())
        return seen

    return on_ranks(Task(Sparta(fraction=fraction), N, "plain"), stand)


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 1.0])
def test_a_share_of_the_elements_meets_at_their_mean_each_time_others(fraction: float) -> None:
    ranks = standing(fraction, 12, 0)
    n = len(ranks[0][0])
    k, met = max(1, int(n * fraction)), torch.zeros(n, dtype=torch.bool)
    for step in range(12):
        for r, seen in enumerate(ranks):
            before = ranks[r][step - 1] if step else torch.full((n,), float(r), dtype=torch.float64)
            now = seen[step] != before
            mean = torch.stack([one[step - 1] for one in ranks]).mean(0) if step else torch.full_like(before, 1.0)
            torch.testing.assert_close(seen[step][now], mean[now])
            if r == 0:  # rank 1 begins at the mean
                assert now.sum() <= k
                assert step or now.sum() == k
                met |= now
    drawn = 1 - (1 - k / n) ** 12  # the expected share, were the draws independent
    assert 0.7 * drawn <= met.double().mean() <= min(1.0, 12 * k / n)


def test_what_is_drawn_depends_on_the_seed_and_the_step() -> None:
    first, same, other = (standing(0.2, 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first[1], same[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize(
    "strategy", [Sparta(), LocalSGD(), DESLOC(), Gossip(), NoCommunication()], ids=lambda one: one.name
)
def test_who_has_a_model_of_its_own_counts_the_samples_of_all(strategy: Strategy) -> None:
    def counted(rank: Rank) -> list[tuple[int, float]]:
        seen = list[tuple[int, float]]()
        for _ in range(3):
            rank.constant_step(0.0, 4)
            seen.append((rank.strategy.descent.samples, rank.strategy.descent.processed))
        return seen

    for seen in on_ranks(Task(strategy, N, "plain"), counted):
        assert seen == [(4 * N, 4 * N), (8 * N, 8 * N), (12 * N, 12 * N)], "the schedule follows them"
