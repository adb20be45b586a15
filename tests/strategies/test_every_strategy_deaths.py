"""Every strategy, by being in the table: what it makes of a worker that dies is what its class says."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gradwire.core.records.errors import RunFailed
from gradwire.core.training.progress import REPORTER
from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import Death
from strategies import Strategy
from tests.ranks import LIMIT, launch, wait_until
from tests.runs import N_TRAIN, small
from tests.strategies.kinds import EXHAUSTIVE, exact, fit, is_virtual, variants
from tests.strategies.loops import Rank, Task, accuracy
from tests.strategies.runs import made

Kind = type[Strategy]
VICTIM = 2
MORTAL: dict[str, Any] = {"model": "tests.workload:mortal", "n_gpus": 4, "epochs": 4}


def roles_of(kind: Kind) -> list[str]:
    if fit(kind, 4) <= VICTIM:
        pytest.skip("has no such rank")
    return kind().roles(fit(kind, 4))


def mortals(roles: list[str]) -> list[int]:
    """The ranks that may die: the workers, but where there is no server rank 0 has its place."""
    return [rank for rank, role in enumerate(roles) if role == "worker" and rank != REPORTER]


def given_by_the_dead(strategy: Strategy) -> int:
    """On how many samples the victim has computed, as a worker of a run without a server: in three steps."""
    plan = small(Path(), strategy, **MORTAL).plan(N_TRAIN)
    return sum(stop - start for start, stop in (plan.bounds(step, VICTIM) for step in range(3)))


@EXHAUSTIVE
@pytest.mark.corners("backup_workers", "hogwild", "inconsistent_reads")
def test_the_others_go_on_without_a_dead_worker(survivor: Kind, tmp_path: Path, exhaustive: bool) -> None:
    """With all its options, where they let workers die, in `test_every_strategy_runs.py`."""
    roles_of(survivor)
    for number, strategy in enumerate(variants(survivor, 4) if exhaustive else [survivor()]):
        facts = made(tmp_path, f"{number}", strategy, real=True, **MORTAL)
        where = strategy
        assert [(death["rank"], death["returned"]) for death in facts["deaths"]] == [(VICTIM, False)], where
        table = pd.read_csv(tmp_path / f"{number}.csv")
        assert set(table["rank"]) == {0, 1, 3}
        assert table["epoch"].max() == 4, "every epoch is ended"
        assert facts["replicas_identical"] or not survivor.traits.agree, where
        samples = table[table["role"] == "server"]["samples"].sum()
        if "server" not in facts["roles"]:
            samples = table["samples"].sum() + given_by_the_dead(strategy)
        if survivor.traits.asynchronous:
            assert samples >= 4 * N_TRAIN, f"the others give its samples: {where}"
        else:
            assert facts["samples_unused"] == 4 * N_TRAIN - samples, where
            assert facts["samples_unused"] >= facts["samples_unused_of_dead_workers"] > 0, where
            if strategy == exact(survivor):
                assert facts["samples_unused"] == facts["samples_unused_of_dead_workers"], "none came too late"


def test_the_run_ends_with_a_dead_worker(mortal: Kind, tmp_path: Path) -> None:
    roles_of(mortal)
    if not is_virtual(mortal):
        pytest.skip("has no virtual time: see the next test")
    with pytest.raises(RunFailed, match=rf"^rank {VICTIM} \(worker\) was killed at 0.01 virtual s$"):
        made(tmp_path, "run", mortal(), n_gpus=fit(mortal, 4), deaths=[Death(VICTIM, 0.01)])


@pytest.mark.corners("ring_all_reduce", "hogwild_pp")
def test_the_run_ends_with_a_dead_process_and_names_it(mortal: Kind, tmp_path: Path) -> None:
    roles_of(mortal)
    with pytest.raises(RunFailed, match=rf"rank {VICTIM} \(worker\) was killed by SIGKILL") as caught:
        made(tmp_path, "run", mortal(), real=True, **MORTAL)
    first, *others = str(caught.value).splitlines()
    assert f"rank {VICTIM}" in first
    assert all(re.match(r" *rank \d \(\w+\) waited for", line) for line in others), str(caught.value)
    assert not (tmp_path / "run.json").exists()


# Deaths in the first moments: before any call of the transport, whatever the worker is about to do


class Doomed:
    """Kills its process when the transport is called for the so manieth time."""

    def __init__(self, transport: Transport, calls: int) -> None:
        self.left = calls
        for name in ("allocate", "shared_vector", "isend", "recv", "_progress"):
            setattr(transport, name, self.counted(getattr(transport, name)))

    def counted(self, call: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return call(*args, **kwargs)

        return counting


def with_a_doomed_worker(transport: Transport, task: Task, calls: int, folder: str) -> tuple[float, int] | None:
    """Train while the victim dies at its first so many calls; where it may return, wait until it has taken a step.

    Return the accuracy, and how many of the victim's gradients were taken.
    """
    returned = Path(folder, "returned")
    is_victim = transport.rank == VICTIM
    if is_victim and not transport.rejoined:
        if calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Doomed(transport, calls)
    rank = Rank(transport, task)

    def after_step() -> None:
        if is_victim:
            if transport.rejoined:
                returned.touch()
        elif folder and not returned.exists():
            assert wait_until(returned.exists, LIMIT)

    for number in range(max(1, transport.recorder.epoch), task.epochs + 1):
        rank.epoch(number, after_step)
    x = rank.strategy.model().clone()
    updates = transport.recorder.frame().query(f"phase == 'update' and version_read >= 0 and peer == {VICTIM}")
    return accuracy(x), len(updates)


@pytest.mark.exhaustive
@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16])
def test_a_worker_that_dies_in_the_first_moments_ends_nothing(survivor: Kind, calls: int) -> None:
    roles = roles_of(survivor)
    task = Task(survivor(), len(roles), "plain", epochs=5)
    found = launch(
        with_a_doomed_worker, len(roles), task, calls, "",
        expendable=mortals(roles), roles=roles, timeout=LIMIT,
    )  # fmt: skip
    assert found[VICTIM] is None
    assert len({result for rank, result in enumerate(found) if rank != VICTIM and result}) >= 1
    assert all(result is not None for rank, result in enumerate(found) if rank != VICTIM)


@pytest.mark.corners("async_param_server")
@pytest.mark.parametrize("calls", [6, *(pytest.param(calls, marks=pytest.mark.exhaustive) for calls in (0, 3, 12))])
def test_a_worker_that_is_started_again_takes_part(returning: Kind, calls: int, tmp_path: Path) -> None:
    roles = roles_of(returning)
    task = Task(returning(), len(roles), "plain", epochs=5)
    found = launch(
        with_a_doomed_worker, len(roles), task, calls, str(tmp_path),
        expendable=mortals(roles), roles=roles, timeout=LIMIT,
        restarts=1, record=True,
    )  # fmt: skip
    assert all(found), "all ranks come to the end"
    assert found[0][1] > 0, "the server has taken what the new process has computed"
    assert found[0][0] > 0.8
