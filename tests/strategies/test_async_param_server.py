"""The asynchronous server: its bound in versions, and where it is the synchronous one."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.records.tables import applied
from gradwire.core.transports.base import Transport
from gradwire.virtual_time.launcher import Death
from strategies import AsyncParamServer, ParamServer
from tests.ranks import virtual_time
from tests.strategies.kinds import assert_same, on_ranks
from tests.strategies.loops import Rank, Task

WORKERS = 3


@pytest.mark.parametrize("how", [{"optimizer": "momentum"}, {"optimizer": "adam", "clip_norm": 0.05}], ids=str)
def test_in_lock_step_it_is_the_synchronous_server_bit_for_bit(how: dict[str, Any]) -> None:
    lock_step = AsyncParamServer(max_staleness=0, aggregate=WORKERS)
    assert_same(Task(lock_step, 4, **how), Task(ParamServer(), 4, **how))


def test_at_the_start_of_an_epoch_nobody_is_further_behind_than_the_bound() -> None:
    def work(rank: Rank) -> dict[int, int]:
        if not rank.is_server:
            rank.constant_epoch(1.0, 1)
            return {}
        server = rank.strategy
        assert isinstance(server, AsyncParamServer)
        server.load_state_dict(server.state_dict() | {"worker_steps": {1: 10, 2: 3, 3: 9}})
        server.updater.until = 1
        rank.constant_epoch(1.0, 1)
        return dict(server.workers.steps)

    assert on_ranks(Task(AsyncParamServer(max_staleness=2), 4, "plain"), work)[0] == {1: 11, 2: 9, 3: 10}


def at_random_pace(transport: Transport, task: Task, paces: list[float], seed: int) -> list[int]:
    """Train, each worker at a pace that changes; on the server, how many versions late each gradient was."""
    rank, chance = Rank(transport, task), random.Random(f"{seed} {transport.rank}")
    for number in range(max(1, transport.recorder.epoch), task.epochs + 1):
        rank.epoch(number, lambda: transport.sleep(paces[transport.rank - 1] * chance.random()))
    return applied(transport.recorder.frame())["staleness"].tolist() if rank.is_server else []


MOMENTS = st.floats(0.0, 0.5)


@settings(max_examples=20)
@given(
    st.integers(0, 2), st.integers(1, 3), st.integers(1, WORKERS), st.integers(0, 99),
    st.lists(st.sampled_from([1e-3, 0.2]), min_size=WORKERS, max_size=WORKERS),
    st.lists(st.tuples(st.integers(2, WORKERS), MOMENTS, st.none() | MOMENTS), max_size=4),
)  # fmt: skip
def test_the_bound_holds_whoever_dies_and_returns(
    s: int, aggregate: int, workers: int, seed: int, paces: list[float], dead: list[tuple[int, float, float | None]]
) -> None:
    deaths = {k: Death(k, at, None if later is None else at + 0.01 + later) for k, at, later in dead if k <= workers}
    task = Task(AsyncParamServer(max_staleness=s, aggregate=aggregate), workers + 1, "plain")
    late = virtual_time(workers + 1, [*deaths.values()]).launch(
        at_random_pace, workers + 1, task, paces, seed, expendable=range(2, workers + 1), roles=task.roles, record=True
    )[0]
    assert 0 <= min(late) <= max(late) <= (2 * s + 1) * (workers - 1)
