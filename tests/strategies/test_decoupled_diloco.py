"""Decoupled DiLoCo: its merges are those of the formulas, and at its limit DiLoCo; a grace time can be replayed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.checkpoints.folder import listed
from gradwire.core.records.errors import RunFailed
from gradwire.every_order.explore import explore
from gradwire.virtual_time.launcher import Death
from strategies import DecoupledDiLoCo, LocalSGD, Strategy
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import N_STEPS, Rank, Task, make_model
from tests.strategies.runs import made
from tests.strategies.test_local_sgd import gradient

EVEN = [i for i in range(5 * N_STEPS) if i % N_STEPS != N_STEPS - 1]  # steps in which all learners have as many samples


def rounds(rank: Rank, steps: Iterable[int] = EVEN) -> torch.Tensor:
    """Return x after each of these steps, on a learner, and at the end."""
    seen = [rank.x()]
    if rank.is_server:
        rank.strategy.serve()
    for i in () if rank.is_server else steps:
        rank.take(i)
        seen.append(rank.x())
    rank.strategy.finish()
    return torch.stack([*seen, rank.x()])


@pytest.mark.parametrize(("workers", "H"), [(1, 3), (2, 1), (3, 3)])
def test_with_learners_that_wait_for_all_and_one_fragment_it_is_diloco(workers: int, H: int) -> None:
    strategy = DecoupledDiLoCo(local_steps=H, fragments=1, wait=True, outer_lr=0.6, outer_momentum=0.8)
    diloco = LocalSGD(local_steps=H, outer_optimizer="nesterov", outer_lr=0.6, outer_momentum=0.8)
    found = on_ranks(Task(strategy, workers + 1, "soft"), rounds)
    expected = on_ranks(Task(diloco, workers, "soft"), rounds)
    for x, of_diloco in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(x, of_diloco, rtol=1e-12, atol=1e-13)
    assert torch.equal(found[0][-1], found[1][-1])


def plain_program(strategy: DecoupledDiLoCo, workers: int, steps: int) -> list[torch.Tensor]:
    """Return the x of each learner after each step, and X after the last, written with nothing of the strategy."""
    task, H, P = Task(strategy, workers + 1, "plain"), strategy.local_steps, strategy.fragments
    X = torch.nn.utils.parameters_to_vector(make_model().parameters()).detach()
    own, velocity, cut = [X.clone() for _ in range(workers)], torch.zeros_like(X), torch.arange(len(X)).tensor_split(P)
    samples, taken, turns = torch.zeros(P, workers, dtype=X.dtype), [0] * P, 0
    seen = [[X.clone()] for _ in range(workers)]

    def merge(comes_back: bool) -> None:
        nonlocal turns
        p, part = turns % P, cut[turns % P]
        w = samples[p] * samples[p] / taken[p]
        d = X[part] - torch.stack([w_m / w.sum() * x[part] for w_m, x in zip(w, own, strict=True)]).sum(0)
        velocity[part] = strategy.outer_momentum * velocity[part] + d
        X[part] -= strategy.outer_lr * (d + strategy.outer_momentum * velocity[part])
        for x in own if comes_back else ():
            x[part] = X[part]
        samples[p], taken[p], turns = 0, 0, turns + 1

    for t in range(steps):
        for m in range(workers):
            batch = task.batch(t, m)
            own[m] = own[m] - 0.3 * gradient(own[m], batch)
            samples[:, m] += len(batch)
        taken = [count + 1 for count in taken]
        if (t + 1) % H == 0:
            merge(comes_back=True)
        for x, of_learner in zip(own, seen, strict=True):
            of_learner.append(x.clone())
    while taken[turns % P]:
        merge(comes_back=False)
    return [torch.stack([*of_learner, X]) for of_learner in seen]


@pytest.mark.parametrize(("workers", "H", "P"), [(1, 1, 2), (2, 2, 2), (3, 1, 3), (3, 3, 2), (4, 2, 5)])
def test_with_learners_that_wait_its_steps_are_those_of_a_plain_program(workers: int, H: int, P: int) -> None:
    """Fragments in turn, uneven parts; the rest of each fragment at the end."""
    strategy = DecoupledDiLoCo(local_steps=H, fragments=P, wait=True, outer_lr=0.6, outer_momentum=0.8)
    found = on_ranks(Task(strategy, workers + 1, "plain"), lambda rank: rounds(rank, range(7)))
    expected = plain_program(strategy, workers, 7)
    for x, of_plain in zip(found[1:], expected, strict=True):
        torch.testing.assert_close(x, of_plain, rtol=1e-10, atol=1e-12)
    assert torch.equal(found[0][-1], found[1][-1])


def merged(strategy: Strategy, n_samples: list[int], steps: list[int]) -> list[list[float]]:
    """From 0, the gradient of learner k is k in all its steps, the learning rate 1. Return the x of each rank."""

    def work(rank: Rank) -> list[float]:
        rank.replica.x.zero_()
        rank.transport.barrier()
        rank.constant_epoch(
            1.0 + rank.worker, *(0, 0) if rank.is_server else (n_samples[rank.worker], steps[rank.worker])
        )
        return list(rank.x())

    return on_ranks(Task(strategy, 3, "unit"), work)


@pytest.mark.parametrize(("n_samples", "steps"), [([5, 1], [2, 2]), ([3, 3], [2, 1]), ([2, 3], [3, 1])])
@pytest.mark.parametrize("fragments", [1, 3])
def test_weights_are_samples_times_samples_by_steps(n_samples: list[int], steps: list[int], fragments: int) -> None:
    strategy = DecoupledDiLoCo(fragments=fragments, outer_lr=0.5, outer_momentum=0.0)
    weights = [(n * count) ** 2 / count for n, count in zip(n_samples, steps, strict=True)]
    mean = sum(-w * k * count for w, k, count in zip(weights, (1, 2), steps, strict=True)) / sum(weights)
    for x in merged(strategy, n_samples, steps):
        assert x == pytest.approx([0.5 * mean] * len(x), rel=1e-12)


# Whom a merge waits for: in virtual time, where a step takes one second, and one learner sends nothing for 100


def taken(strategy: DecoupledDiLoCo) -> tuple[list[float], int]:
    """Return when the first learner takes what comes back, to a tenth of a second, and how much it is owed at most."""

    def work(rank: Rank) -> tuple[list[float], int]:
        own, at, most = rank.strategy, list[float](), 0
        assert isinstance(own, DecoupledDiLoCo)
        if rank.is_server:
            own.serve()
        for step in range(0 if rank.is_server else 8):
            rank.transport.sleep(100.0 if rank.worker and not step else 1.0)
            owed = sum(own.turns.owed)
            rank.constant_step(1.0, 1)
            most = max(most, *own.turns.owed)
            if sum(own.turns.owed) < owed + (step % 2 and not own.wait) or (own.wait and step % 2):
                at.append(round(rank.transport.now(), 1))
        own.finish()
        return at, most

    return on_ranks(Task(strategy, 3, "unit"), work)[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quorum": 1}, ([3, 5, 7], 1)),
        ({"grace": 0.5}, ([3, 5, 7], 1)),
        ({"grace": 0.5, "wait": True}, ([2.5, 5.0, 7.5, 10.0], 0)),
        ({"grace": 1e5}, ([5, 7], 2)),  # when it has sent the fragment again
        ({"grace": 1e5, "quorum": 2}, ([5, 7], 2)),
    ],
)
def test_a_merge_waits_for_a_quorum_and_no_longer_than_the_grace_time(options: dict[str, Any], expected: Any) -> None:
    assert taken(DecoupledDiLoCo(local_steps=2, fragments=1, **options)) == expected


def test_a_learner_faster_than_the_network_is_owed_no_more_than_two_of_a_fragment() -> None:
    """Computing takes no time."""

    def work(rank: Rank) -> list[int]:
        own, owed = rank.strategy, list[int]()
        assert isinstance(own, DecoupledDiLoCo)
        rank.constant_epoch(1.0, 1, 60, lambda: owed.append(max(own.turns.owed)))
        return owed

    _, *learners = on_ranks(Task(DecoupledDiLoCo(local_steps=2, fragments=3), 3, "unit"), work)
    assert [max(owed) for owed in learners] == [2, 2]


def test_all_orders_of_small_runs() -> None:
    for strategy, n_gpus, steps in (
        (DecoupledDiLoCo(), 2, 2),
        (DecoupledDiLoCo(local_steps=1), 2, 3),
        (DecoupledDiLoCo(local_steps=1, fragments=1, wait=True), 3, 2),
    ):
        report = explore(strategy, n_gpus, steps)
        assert report.complete
        assert report.counterexample is None, report.text()


@pytest.mark.parametrize("deaths", [0, 1])
def test_all_end_with_the_same_x_whoever_was_answered_last(deaths: int) -> None:
    """Also a learner of which the last merge was of a fragment, while others had been merged since it took them."""
    report = explore(DecoupledDiLoCo(local_steps=1), n_gpus=3, at_most=120, random=0, deaths=deaths)
    assert report.counterexample is None, report.text()


# Runs


def test_a_grace_time_that_has_passed_is_replayed(tmp_path: Path) -> None:
    strategy = DecoupledDiLoCo(grace=0.004)
    facts = made(tmp_path, "run", strategy, slow=("1:3",), jitter=0.5)
    again = made(tmp_path, "again", strategy, slow=("3:5",), replay=str(tmp_path / "run"))
    server, *learners = facts["arrivals"].split(";")
    assert "-" in server
    assert len(learners) == 3
    assert again["parameter_hash"] == facts["parameter_hash"]
    assert again["arrivals"] == facts["arrivals"]


@pytest.mark.parametrize(
    "strategy", [DecoupledDiLoCo(grace=1e5), DecoupledDiLoCo(grace=0.0), DecoupledDiLoCo(wait=True)]
)
@pytest.mark.parametrize("times", [(0.02, 0.03), (0.03, 0.02), (0.025, 0.025)])
def test_nothing_waits_for_learners_that_die_in_any_order(
    tmp_path: Path, strategy: DecoupledDiLoCo, times: tuple[float, float]
) -> None:
    facts = made(tmp_path, "run", strategy, deaths=[Death(k, at) for k, at in zip((1, 2), times, strict=True)])
    assert sorted(death["rank"] for death in facts["deaths"]) == [1, 2]
    back = made(tmp_path, "back", strategy, deaths=[Death(k, at, 0.05) for k, at in zip((1, 2), times, strict=True)])
    assert all(death["returned"] for death in back["deaths"])
    with pytest.raises(RunFailed, match="rank 0"):
        made(tmp_path, "none", strategy, deaths=[Death(k, 0.02 + k / 1000) for k in (1, 2, 3)])


def test_a_checkpoint_of_a_run_whose_learners_wait_has_all(tmp_path: Path) -> None:
    """But for the states of their optimizers: x, the outer momentum, and how many steps each has taken."""
    same: dict[str, Any] = {"momentum": 0.0, "n_gpus": 3, "batch_size": 16}
    strategy = DecoupledDiLoCo(local_steps=2, fragments=1, wait=True)
    facts = made(tmp_path, "run", strategy, checkpoint_every=2, checkpoint_keep=10, **same)
    for checkpoint in listed(tmp_path / "run.checkpoints"):
        resumed = made(tmp_path, checkpoint.name, strategy, resume=str(checkpoint), **same)
        assert resumed["parameter_hash"] == facts["parameter_hash"], checkpoint
