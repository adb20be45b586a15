"""Strategies on every launcher whose ranks share no memory: they end as on shared memory, or at least run.

All strategies of a launcher run in the same processes, one after the other: starting them takes longest. By default
these are a few; with `-m exhaustive` the whole table, and each strategy with every option away from its default.
"""

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gradwire import run
from gradwire.core.records.errors import UsageError
from gradwire.results import load_events, load_metadata
from strategies import STRATEGIES, Strategy
from tests.core.launchers.engines import dask_client, params
from tests.pools import Pool
from tests.ranks import LIMIT
from tests.runs import IN_MEMORY, KINDS, made, small
from tests.strategies.kinds import allows, exact, needs, other_value

TRANSPORTS = {"torchrun": "process_group", "mpi": "mpi", "dask": "process_group"}
N = 3
SAME: dict[str, Any] = {"model": "tests.workload:batch_norm", "n_gpus": N}  # here as there
CASES: dict[str, Strategy] = {name: exact(kind) for name, kind in KINDS.items()}
"""Every strategy, and each with every option away from its default, by what its records are called."""
for _name, _kind in STRATEGIES.items():
    for _option in (field.name for field in dataclasses.fields(_kind)):
        _value = other_value(_kind(), _option)
        _other = _kind(**{_option: _value} | needs(_kind, _option))
        if allows(_other, N):
            CASES[f"{_name} {_option} {_value}"] = _other
FEW = ("ring_all_reduce", "async_param_server", "single")
REFUSED = {
    "single": "--n_gpus {}: single is at most 1 process(es)",
    **{name: f"--strategy {name}: needs shared memory" for name in IN_MEMORY},
    "param_server_builtin": "param_server_builtin starts its processes itself",
    "fully_sharded_builtin": "fully_sharded_builtin starts its processes itself",
    "ring_all_reduce_builtin": "ring_all_reduce_builtin starts its processes itself",
}


def run_all(folder: Path, names: tuple[str, ...], **changes: Any) -> None:
    """Run some cases, each recorded by its name in the folder; what is refused leaves the reason."""
    for name in names:
        try:
            run(small(folder, dataclasses.replace(CASES[name]), run_name=name, **SAME | changes), quiet=True)
        except UsageError as error:
            (folder / f"{name}.refused").write_text(str(error))


def check(folder: Path, launcher: str, names: tuple[str, ...]) -> None:
    """Run some cases on the launcher, and compare each with the same run on shared memory."""
    if launcher == "dask":
        run_all(folder, names, launcher="dask", scheduler=dask_client().scheduler.address)
    else:
        Pool.running(launcher).run(N, partial(run_all, folder, names), limit=4 * LIMIT)
    for name in names:
        strategy = CASES[name]
        if (refused := folder / f"{name}.refused").exists():
            assert refused.read_text().startswith(REFUSED[strategy.name].format(N)), name
            continue
        assert strategy.name not in REFUSED
        facts: dict[str, Any] = load_metadata(folder / f"{name}.json")
        assert (facts["transport"], facts["n_gpus"]) == (TRANSPORTS[launcher], N), name
        assert [facts["clocks"][str(rank)]["offset"] for rank in range(N)] == [0.0] * N, name
        assert set(load_events(folder / f"{name}.events.csv.gz")["rank"]) == set(range(N)), name
        if strategy.traits.asynchronous or (
            strategy.traits.workers_may_die and strategy != exact(type(strategy))
        ):  # the order of arrival decides how well it learns, and is not fixed here
            assert math.isfinite(facts["test_accuracy"]), name
            continue
        assert facts["replicas_identical"] or not strategy.traits.agree, name
        expected = made(folder / "here", strategy, name, **SAME)
        assert facts["parameter_hash"] == expected["parameter_hash"], name
        assert facts["bytes_sent"] == expected["bytes_sent"], name


@pytest.mark.slow
@pytest.mark.parametrize("launcher", params(*TRANSPORTS))
@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(CASES), marks=pytest.mark.exhaustive)], ids=["few", "every"])
def test_a_strategy_ends_as_on_shared_memory_or_runs_or_says_why_not(
    launcher: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    check(tmp_path, launcher, names)
