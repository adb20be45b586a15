"""Decoupled DiLoCo: its merges are those of the formulas, and at its limit DiLoCo; a grace time can be replayed."""

from pathlib import Path
from typing import Any

import pytest

from gradwire.checkpoints.folder import listed
from gradwire.core.records.errors import RunFailed
from gradwire.every_order.explore import explore
from gradwire.virtual_time.launcher import Death
from strategies import DecoupledDiLoCo
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task
from tests.strategies.runs import made


def test_weights_are_samples_times_samples_by_steps() -> None:
    """From 0, the gradient of learner k is k in all its steps, and the learning rate 1."""
    n_samples, steps = (2, 3), (3, 1)

    def merged(rank: Rank) -> list[float]:
        rank.replica.x.zero_()
        rank.transport.barrier()
        how = (0, 0) if rank.is_server else (n_samples[rank.worker], steps[rank.worker])
        rank.constant_epoch(1.0 + rank.worker, *how)
        return list(rank.x())

    weights = [(n * count) ** 2 / count for n, count in zip(n_samples, steps, strict=True)]
    mean = sum(-w * k * count for w, k, count in zip(weights, (1, 2), steps, strict=True)) / sum(weights)
    for x in on_ranks(Task(DecoupledDiLoCo(fragments=3, outer_lr=0.5, outer_momentum=0.0), 3, "unit"), merged):
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


def test_all_end_with_the_same_x_whoever_was_answered_last() -> None:
    """Also a learner of which the last merge was of a fragment, while others had been merged since it took them.

    One of the random orders has such a learner; the first orders, which depart little from the plain one, have none.
    """
    report = explore(DecoupledDiLoCo(local_steps=1), n_gpus=3, at_most=1, random=20)
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


@pytest.mark.parametrize("strategy", [DecoupledDiLoCo(grace=1e5), DecoupledDiLoCo(wait=True)])
def test_nothing_waits_for_learners_that_die(tmp_path: Path, strategy: DecoupledDiLoCo) -> None:
    times = (0.02, 0.03)
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
