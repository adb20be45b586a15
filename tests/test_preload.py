"""What is loaded, and when, before the first step of a run: it decides how long a user waits for it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FIRST = """
import runpy, sys
from gradwire.core import launchers
launchers.warm_up = lambda: sys.exit(str(sorted(sys.modules)))
runpy.run_path("train.py", run_name="__main__")
"""

UP_TO_A_STEP = """
import sys
import gradwire.command_line, gradwire.preload
from gradwire.core.strategy.factories import is_elementwise
from gradwire.core.training.optimizers import OPTIMIZERS, factory
from gradwire.core.workloads import datasets
from gradwire.core.workloads.options import DataOptions
datasets.load(DataOptions())
for name in ("sgd", "adam", "adamw", "rmsprop"):
    assert is_elementwise(factory(name, 0.1, 0.9, 0.0, ()))
sys.exit(str(sorted(sys.modules)))
"""


OUTER = """
import sys
from gradwire.every_order.runs import Case, run_once
from gradwire.every_order.search import follow
from strategies import DecoupledDiLoCo, LocalSGD, StreamingDiLoCo
for strategy in (
    DecoupledDiLoCo(local_steps=1), LocalSGD(local_steps=1, outer_optimizer="nesterov"), StreamingDiLoCo(local_steps=1)
):
    assert run_once(Case(strategy), follow(())).has_ended
sys.exit(str(sorted(sys.modules)))
"""


def loaded_by(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("["), done.stderr
    return done.stderr


def test_the_fork_server_is_started_before_anything_large_is_loaded() -> None:
    modules = loaded_by(FIRST)
    for large in ("torch", "numpy", "pandas", "tyro"):
        assert f"'{large}'" not in modules


@pytest.mark.slow
def test_neither_a_launcher_nor_a_rank_loads_what_a_usual_run_has_no_use_for() -> None:
    modules = loaded_by(UP_TO_A_STEP)
    assert "'torch'" in modules
    for large in ("torch._dynamo", "sympy", "sklearn", "scipy", "matplotlib", "torchvision", "blosc2"):
        assert f"'{large}'" not in modules


@pytest.mark.slow
def test_an_outer_optimizer_loads_no_compiler_while_the_workers_of_a_server_wait() -> None:
    assert "'torch._dynamo'" not in loaded_by(OUTER)
