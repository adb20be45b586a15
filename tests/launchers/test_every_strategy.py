"""Every strategy of the table on every launcher, with 3 ranks: it ends as on shared memory, or at least runs.

All strategies of a launcher run in the same processes, one after the other: starting them takes longest.
"""

import importlib.util
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from records.files import load_events, load_metadata
from strategies import Strategy
from tests.launchers.every_strategy import CASES, RANKS, SAME, run_all
from tests.ranks import LIMIT
from tests.runs import IN_MEMORY, ROOT, made
from tests.strategies.loops import exact

PROGRAM = ("-m", "tests.launchers.every_strategy")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), *PROGRAM)
MPIRUN = ("mpirun", "-n", str(RANKS), "--oversubscribe", sys.executable, *PROGRAM)
TRANSPORTS = {"torchrun": "process_group", "mpi": "mpi", "dask": "process_group"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in TRANSPORTS])
def launcher(request: pytest.FixtureRequest) -> str:
    """The name of a launcher whose packages are there."""
    if request.param == "mpi" and not (importlib.util.find_spec("mpi4py") and shutil.which("mpirun")):
        pytest.skip("needs mpi4py and mpirun: pip install -e '.[mpi]'")
    if request.param == "dask" and not importlib.util.find_spec("distributed"):
        pytest.skip("needs dask.distributed: pip install -e '.[dask]'")
    return request.param


@pytest.fixture(scope="module")
def runs(launcher: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records of all strategies, made by the launcher."""
    folder = tmp_path_factory.mktemp(launcher)
    if launcher == "dask":
        run_all(folder, launcher="dask", n_gpus=RANKS)
        return folder
    line = [*(TORCHRUN if launcher == "torchrun" else MPIRUN), str(folder)]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        line, cwd=ROOT, env=os.environ | as_root, capture_output=True, text=True, timeout=4 * LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the same runs on shared memory."""
    return tmp_path_factory.mktemp("here")


@pytest.mark.parametrize(("name", "strategy"), CASES.items(), ids=list(CASES))
def test_it_ends_as_on_shared_memory_or_runs_or_says_why_not(
    name: str, strategy: Strategy, launcher: str, runs: Path, here: Path
) -> None:
    if (refused := runs / f"{name}.refused").exists():
        assert refused.read_text().startswith(REFUSED[strategy.name].format(RANKS))
        return
    facts: dict[str, Any] = load_metadata(runs / f"{name}.json")
    assert facts["transport"] == TRANSPORTS[launcher]
    assert facts["n_gpus"] == RANKS
    assert [facts["clocks"][str(rank)]["offset"] for rank in range(RANKS)] == [0.0] * RANKS
    events = load_events(runs / f"{name}.events.csv.gz")
    assert set(events["rank"]) == set(range(RANKS))
    if strategy.traits.asynchronous or (
        strategy.traits.workers_may_die and strategy != exact(type(strategy))
    ):  # the order of arrival decides how well it learns, and is not fixed here
        assert math.isfinite(facts["test_accuracy"])
        return
    assert facts["replicas_identical"] or not strategy.traits.agree
    expected = made(here, strategy, f"{name} {launcher}", n_gpus=RANKS, **SAME)
    assert facts["parameter_hash"] == expected["parameter_hash"]
    assert facts["bytes_sent"] == expected["bytes_sent"]


REFUSED = {
    "single": "--n_gpus {}: single is at most 1 process(es)",
    **{name: f"--strategy {name}: needs shared memory" for name in IN_MEMORY},
    "param_server_builtin": "param_server_builtin starts its processes itself",
    "ring_all_reduce_builtin": "ring_all_reduce_builtin starts its processes itself",
}


def test_only_these_are_refused(runs: Path) -> None:
    assert {path.stem.split()[0] for path in runs.glob("*.refused")} == set(REFUSED)
