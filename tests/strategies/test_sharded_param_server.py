"""Several servers take the steps of one: what each sends, receives and keeps."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gradwire.pictures.staleness import per_worker
from gradwire.results import load_events, load_table
from strategies import ParamServer, ShardedParamServer, Strategy
from tests.runs import N_TRAIN
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import N_STEPS, Task
from tests.strategies.test_every_strategy import assert_steps_of_one_process
from tests.strategies.test_every_strategy_runs import simulated
from tests.strategies.test_param_server import messages as messages_of

# The steps of one process, and the end of an epoch


@pytest.mark.parametrize(("servers", "workers"), [(2, 1), (3, 4), pytest.param(70, 2, marks=pytest.mark.exhaustive)])
def test_they_take_the_steps_of_one_process(servers: int, workers: int) -> None:
    """66 parameters: of 70 servers, the last have none."""
    assert_steps_of_one_process(ShardedParamServer(servers=servers), servers + workers, epochs=1)


# Who sends what to whom


def sent(strategy: Strategy, n: int, clip_norm: float = 0.0) -> list[list[tuple[int, str, int]]]:
    """What each rank sends in an epoch."""
    ranks = on_ranks(Task(strategy, n, clip_norm=clip_norm), messages_of, record=True)
    return [[tuple(rest) for op, *rest in of_rank if op == "send"] for of_rank in ranks]


def test_each_slice_goes_to_its_server_and_comes_from_it() -> None:
    slices = [8 * length for length in (17, 17, 16, 16)]
    ranks = sent(ShardedParamServer(servers=4), 6)
    for i, messages in enumerate(ranks[:4]):
        step = [(k, "parameters", slices[i]) for k in (4, 5)]
        assert messages[: len(step) * N_STEPS] == step * N_STEPS
    for messages in ranks[4:]:
        step = [(i, "gradient", slices[i]) for i in range(4)]
        end = [*((i, "goodbye", 0) for i in range(4)), (0, "buffers", 0)]
        assert messages == step * N_STEPS + end


def test_a_bound_on_the_norm_costs_a_number_from_each_server_to_each() -> None:
    ranks = sent(ShardedParamServer(servers=3), 5, clip_norm=0.05)
    for i, messages in enumerate(ranks):
        numbers = [(peer, nbytes) for peer, tag, nbytes in messages if tag == "to everyone"]
        others = [(i + 1) % 3, (i + 2) % 3]
        assert numbers == ([(peer, 8) for peer in others] * N_STEPS if i < 3 else [])


# Whole runs


def test_the_records_count_samples_and_gradients_once(tmp_path: Path) -> None:
    same: dict[str, Any] = {"model": "tests.workload:linear", "slow": (), "jitter": 0.0, "batch_size": 24}
    single = simulated(tmp_path, ParamServer(), 3, "one", **same)
    several = simulated(tmp_path, ShardedParamServer(), 4, "several", **same)
    assert several["replicas_identical"]
    assert several["parameter_hash"]["0"] == single["parameter_hash"]["0"]
    assert several["test_accuracy"] == single["test_accuracy"]
    table = load_table(tmp_path / "several.csv")
    servers = table[table["role"] == "server"]
    assert servers.groupby("rank")["samples"].sum(min_count=1).tolist() == [3 * N_TRAIN, pd.NA]
    assert several["samples_per_s"] * several["seconds"] == pytest.approx(3 * N_TRAIN, rel=0.2), "not twice"
    assert servers.groupby("rank")["step"].max().tolist() == [12, 12]
    applied = [per_worker(load_events(tmp_path / f"{name}.events.csv.gz"))["applied"] for name in ("one", "several")]
    assert applied[0].tolist() == applied[1].tolist() == [12, 12]
    assert applied[1].index.tolist() == [2, 3]
