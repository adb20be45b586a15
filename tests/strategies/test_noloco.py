"""NoLoCo: its rounds of two ranks are those of DiLoCo; the pull keeps replicas together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from strategies import LocalSGD, NoLoCo
from tests.strategies.kinds import assert_same, on_ranks
from tests.strategies.loops import Rank, Task, make_model
from tests.strategies.runs import made


def drawn(N: int, rounds: int, seed: int = 0) -> list[list[int | None]]:
    """Of each rank the one that it meets in each round, from 1 on."""

    def draw(rank: Rank) -> list[int | None]:
        assert isinstance(rank.strategy, NoLoCo)
        rank.strategy.seed = seed
        return [rank.strategy.partner(number) for number in range(1, rounds + 1)]

    return on_ranks(Task(NoLoCo(), N, "plain"), draw)


@pytest.mark.parametrize("N", [1, 2, 3, 4, 5])
def test_in_each_round_all_ranks_are_in_pairs_but_one_of_an_odd_number(N: int) -> None:
    rounds = list(zip(*drawn(N, 100), strict=True))
    for partners in rounds:
        assert partners.count(None) == N % 2
        assert all(one is None or (one != rank and partners[one] == rank) for rank, one in enumerate(partners))
    for rank in range(N):
        assert {partners[rank] for partners in rounds} == {*range(N), *([None] * (N % 2))} - {rank}, "it meets all"
    assert (drawn(N, 20, seed=1) != drawn(N, 20, seed=2)) == (N > 2)


@pytest.mark.parametrize("optimizer", ["plain", "adam", "muon", "groups"])
@pytest.mark.parametrize(("b", "outer"), [(0.7, {"outer_optimizer": "nesterov", "outer_momentum": 0.0}), (1.0, {})])
def test_with_two_ranks_and_without_momentum_it_is_diloco(b: float, outer: dict[str, Any], optimizer: str) -> None:
    """With an outer momentum of 0; with a rate of 1 FedAvg. In batches whose parts have the same size."""
    noloco, limit = NoLoCo(local_steps=3, outer_lr=b, outer_momentum=0.0), LocalSGD(local_steps=3, **outer)
    assert_same(Task(noloco, 2, optimizer, epochs=1), Task(limit, 2, optimizer, epochs=1), 1e-12, steps=3)


def spread(strategy: NoLoCo, N: int, rounds: int, step: Callable[[Rank, int], None]) -> torch.Tensor:
    """The distance of the replicas from their mean after each round, rank m having begun at m everywhere."""

    def walk(rank: Rank) -> torch.Tensor:
        assert isinstance(rank.strategy, NoLoCo)
        for x in (rank.replica.x, rank.strategy.x0):
            x.fill_(float(rank.transport.rank))
        seen = list[torch.Tensor]()
        for number in range(rounds):
            step(rank, number)
            seen.append(rank.x())
        return torch.stack(seen)

    found = torch.stack(on_ranks(Task(strategy, N, "unit"), walk))
    return (found - found.mean(0)).square().sum((0, 2)).sqrt()


def noise(rank: Rank, number: int) -> None:
    generator = torch.Generator().manual_seed(1000 * number + rank.transport.rank)
    rank.constant_step(float(torch.randn((), generator=generator)), 4)


def test_with_the_pull_replicas_stay_together_and_without_it_they_drift_apart() -> None:
    """In steps of noise."""
    pulled, free = (spread(NoLoCo(local_steps=1, consensus_lr=c), 4, 200, noise) for c in (0.7, 0.0))
    assert pulled[100:].max() < 1.5 * pulled[20:100].max()
    assert free[150:].mean() > 3 * free[:20].mean()
    assert free[150:].mean() > 5 * pulled[150:].mean()


@pytest.mark.parametrize(
    ("a", "c", "meet"), [(0.5, 0.7, True), (0.5, 2.99, True), (0.5, 3.01, False), (0.0, 1.99, True), (0.0, 2.01, False)]
)
def test_two_ranks_meet_if_the_pull_is_below_twice_one_plus_the_momentum(a: float, c: float, meet: bool) -> None:
    strategy = NoLoCo(local_steps=1, outer_momentum=a, consensus_lr=c)
    found = spread(strategy, 2, 1000, lambda rank, _: rank.constant_step(0.0, 4))
    apart, v, expected = (len(torch.nn.utils.parameters_to_vector(make_model().parameters())) / 2) ** 0.5, 0.0, []
    for _ in range(20):
        v = a * v - c * apart
        apart += v
        expected.append(abs(apart))
    torch.testing.assert_close(found[:20], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert found[-1] < found[0] / 100 if meet else found[-1] > 100 * found[0]


@pytest.mark.parametrize("step", [3, 4])
def test_a_resumed_run_goes_on_with_the_movement_of_the_rounds_before(tmp_path: Path, step: int) -> None:
    """From the middle of the second round, and from its end."""
    given: dict[str, Any] = {"n_gpus": 3, "epochs": 1}
    whole = made(tmp_path, "whole", NoLoCo(local_steps=2), checkpoint_every=1, checkpoint_keep=99, **given)
    path = str(tmp_path / "whole.checkpoints" / f"step-0000000{step}")
    again = made(tmp_path, "again", NoLoCo(local_steps=2), resume=path, **given)
    assert again["parameter_hash"] == whole["parameter_hash"]
