"""DES-LOC: where it is Adam on the ring, and why not elsewhere."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.training.optimizers import factory
from gradwire.virtual_time.dry_run import period
from strategies import DESLOC, RingAllReduce, Strategy, by_name
from tests.strategies.kinds import on_ranks, start
from tests.strategies.loops import OPTIMIZERS, Rank, Task, make_model, trajectories
from tests.strategies.test_local_sgd import gradient

N, RATE, B1, B2, EPS = 3, 0.01, 0.9, 0.999, 1e-8


@pytest.mark.parametrize(
    ("strategy", "periods"),
    [(DESLOC(), (4, 12, 24)), (DESLOC(local_steps=3, first_period=2, second_period=5), (3, 2, 5))],
)
def test_after_so_many_steps_its_messages_repeat(strategy: DESLOC, periods: tuple[int, int, int]) -> None:
    assert all(period(strategy) % K == 0 for K in periods)


# All periods 1

ALL_1 = DESLOC(local_steps=1, first_period=1, second_period=1)


def states_after(strategy: Strategy, n_gpus: int, alike: bool, steps: int = 9) -> list[torch.Tensor]:
    """Of each rank, x, u and v [3, n] after so many steps, on parts of the batch or on the same samples everywhere."""

    def train(rank: Rank) -> torch.Tensor:
        rank.worker = 0 if alike else rank.worker
        for i in range(steps):
            rank.take(i)
        state, parameters = rank.strategy.descent.optimizer.state, rank.strategy.descent.parameters
        moments = [torch.cat([state[p][name] for p in parameters]) for name in ("exp_avg", "exp_avg_sq")]
        return torch.stack([rank.x(), *moments])

    return on_ranks(Task(strategy, n_gpus, "adam"), train)


@pytest.mark.parametrize(("n_gpus", "alike"), [(1, False), (N, True)])
def test_with_all_periods_1_and_the_same_gradients_it_is_adam_on_the_ring(n_gpus: int, alike: bool) -> None:
    ours, rings = (states_after(one, n_gpus, alike) for one in (ALL_1, RingAllReduce()))
    torch.testing.assert_close(ours, rings, rtol=1e-10, atol=1e-14)


def test_else_the_first_moment_is_the_rings_and_the_second_has_the_variance_of_the_gradients_too() -> None:
    """In the first step, which all take from the same x; so x moves by another step than the ring's."""
    ours, rings = (states_after(one, N, alike=False, steps=1) for one in (ALL_1, RingAllReduce()))
    assert all(torch.equal(one, ours[0]) for one in ours), "replicas agree"
    x = torch.nn.utils.parameters_to_vector(make_model().parameters()).detach()
    g = torch.stack([gradient(x, Task(ALL_1, N).plan.part(1, 0, k)) for k in range(N)])
    torch.testing.assert_close(ours[0][1], rings[0][1], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(ours[0][2] - rings[0][2], (1 - B2) * g.var(0, correction=0), rtol=1e-9, atol=1e-15)
    assert (ours[0][0] - rings[0][0]).abs().max() > 0.1 * RATE, "not Adam on the ring"


# Optimizers


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_groups_and_decay_are_the_optimizers(make: type[torch.optim.Adam], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors in two groups, which Adam then sees one by one, are updated as in one vector."""
    whole = partial(make, lr=RATE, weight_decay=0.1)
    grouped = lambda ps: whole([{"params": [p for p in ps if (p.dim() > 1) is of]} for of in (True, False)])  # noqa: E731
    found = []
    for optimizer in (whole, grouped):
        monkeypatch.setitem(OPTIMIZERS, "adam", optimizer)
        ranks = start(DESLOC, trajectories, N, [Task(DESLOC(local_steps=2), N, "adam")])
        found.append(torch.tensor(ranks, dtype=torch.float64))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("optimizer", "message"), [
    (OPTIMIZERS["plain"], "--optimizer sgd: des_loc averages the two moments of adam; take adam or adamw"),
    (torch.optim.NAdam, "--optimizer nadam: des_loc averages"),
    (factory("muon", RATE, B1, 0.0, ()), "--optimizer muon: des_loc averages"),
    (by_name(torch.optim.Adam, "mine"), "--optimizer mine: des_loc averages"),
    (partial(torch.optim.Adam, amsgrad=True), "--optimizer_options amsgrad=True: des_loc averages"),
])  # fmt: skip
def test_another_optimizer_is_refused(optimizer: partial[torch.optim.Optimizer], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        DESLOC().check(replace(Task(DESLOC(), N).size, optimizer=optimizer))
