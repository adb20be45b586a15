"""Sparta: the same random elements on all ranks become their mean; the others stay as they are."""

import pytest
import torch

from strategies import Gossip, LocalSGD, NoCommunication, Sparta, Strategy
from tests.ranks import run
from tests.strategies.loops import Rank, Task, trajectories
from transports.base import Transport

N = 3


def test_with_fraction_1_everything_is_averaged() -> None:
    # An unweighted mean: the batches' parts have the same size but in the last step, which is left out.
    tasks = [Task(strategy, N, "plain", epochs=1) for strategy in (Sparta(fraction=1.0), LocalSGD(local_steps=1))]
    sparta, averaged = (torch.tensor(seen)[:3] for seen in run("simulated", trajectories, N, tasks)[0])
    torch.testing.assert_close(sparta, averaged, rtol=1e-12, atol=1e-12)


def standing(transport: Transport, fraction: float, steps: int, seed: int) -> list[torch.Tensor]:
    """Steps without gradients: x [n] of this rank after each, which begins at its rank everywhere."""
    rank = Rank(transport, Task(Sparta(fraction=fraction), N, "plain"))
    rank.strategy.seed = seed
    rank.replica.x.fill_(float(transport.rank))
    seen = []
    for _ in range(steps):
        rank.constant_step(0.0, 1)
        seen.append(rank.x())
    rank.stop()
    return seen


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 1.0])
def test_a_share_of_the_elements_meets_at_their_mean_each_time_others(fraction: float) -> None:
    ranks = run("simulated", standing, N, fraction, 12, 0)
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
    first, same, other = (run("simulated", standing, N, 0.2, 2, seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first[1], same[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def counted(transport: Transport, task: Task) -> list[tuple[int, float]]:
    """The samples, as a rank knows them, after each of three steps of 4."""
    rank, seen = Rank(transport, task), []
    for _ in range(3):
        rank.constant_step(0.0, 4)
        seen.append((rank.strategy.descent.samples, rank.strategy.descent.processed))
    rank.stop()
    return seen


@pytest.mark.parametrize("strategy", [Sparta(), LocalSGD(), Gossip(), NoCommunication()], ids=lambda one: one.name)
def test_who_has_a_model_of_its_own_counts_the_samples_of_all(strategy: Strategy) -> None:
    for seen in run("simulated", counted, N, Task(strategy, N, "plain")):
        assert seen == [(4 * N, 4 * N), (8 * N, 8 * N), (12 * N, 12 * N)], "the schedule follows them"
