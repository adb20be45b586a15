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

from records.errors import UsageError
from records.files import load_events, load_metadata
from strategies import STRATEGIES, Strategy
from tests.launchers.engines import dask_client, params
from tests.pools import SIZE, Pool
from tests.ranks import LIMIT
from tests.runs import IN_MEMORY, KINDS, made, small, strategy_of
from tests.strategies.loops import NEEDS, allows, exact, other_value
from training import run

TRANSPORTS = {"torchrun": "process_group", "mpi": "mpi", "dask": "process_group"}
SAME: dict[str, Any] = {"model": "tests.workload:batch_norm", "epochs": 3}  # here as there
EXACT: dict[str, dict[str, Any]] = {"backup_workers": {"n_backup": 0}}  # with backups, the order of arrival decides
CASES: dict[str, Strategy] = {name: strategy_of(name, **EXACT.get(name, {})) for name in KINDS}
"""Every strategy, and each with every option away from its default, by what its records are called."""
for _name, _kind in STRATEGIES.items():
    for _option in (field.name for field in dataclasses.fields(_kind)):
        _value = other_value(_kind(), _option)
        _other = _kind(**{_option: _value} | NEEDS.get(_option, {}))
        if allows(_other, 3) and allows(_other, SIZE):
            CASES[f"{_name} {_option} {_value}"] = _other
FEW = ("param_server", "ring_all_reduce", "async_param_server", "single")
REFUSED = {
    "single": "--n_gpus {}: single is at most 1 process(es)",
    **{name: f"--strategy {name}: needs shared memory" for name in IN_MEMORY},
    "param_server_builtin": "param_server_builtin starts its processes itself",
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
    n_gpus = 3 if launcher == "dask" else SIZE
    if launcher == "dask":
        run_all(folder, names, launcher="dask", scheduler=dask_client().scheduler.address, n_gpus=n_gpus)
    else:
        Pool.running(launcher).run(n_gpus, partial(run_all, folder, names), limit=4 * LIMIT)
    for name in names:
        strategy = CASES[name]
        if (refused := folder / f"{name}.refused").exists():
            assert refused.read_text().startswith(REFUSED[strategy.name].format(n_gpus)), name
            continue
        assert strategy.name not in REFUSED
        facts: dict[str, Any] = load_metadata(folder / f"{name}.json")
        assert (facts["transport"], facts["n_gpus"]) == (TRANSPORTS[launcher], n_gpus), name
        assert [facts["clocks"][str(rank)]["offset"] for rank in range(n_gpus)] == [0.0] * n_gpus, name
        assert set(load_events(folder / f"{name}.events.csv.gz")["rank"]) == set(range(n_gpus)), name
        if strategy.traits.asynchronous or (
            strategy.traits.workers_may_die and strategy != exact(type(strategy))
        ):  # the order of arrival decides how well it learns, and is not fixed here
            assert math.isfinite(facts["test_accuracy"]), name
            continue
        assert facts["replicas_identical"] or not strategy.traits.agree, name
        expected = made(folder / "here", strategy, name, n_gpus=n_gpus, **SAME)
        assert facts["parameter_hash"] == expected["parameter_hash"], name
        assert facts["bytes_sent"] == expected["bytes_sent"], name


@pytest.mark.slow
@pytest.mark.parametrize("launcher", params(*TRANSPORTS))
def test_a_few_strategies_end_as_on_shared_memory(launcher: str, tmp_path: Path) -> None:
    check(tmp_path, launcher, FEW)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("launcher", params(*TRANSPORTS))
def test_every_strategy_ends_as_on_shared_memory_or_runs_or_says_why_not(launcher: str, tmp_path: Path) -> None:
    check(tmp_path, launcher, tuple(CASES))
