"""Ranks start fast: the fork server of the test session has loaded once what every test module imports."""

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from gradwire.core.launchers.fork_server import preload, warm_up
from tests.engines import SURVIVED, TOLD, Engine
from tests.pools import NEEDS_MPI, Pool
from tests.ranks import HELD_BACK, PROCESSES, engine_named
from tests.selection import chosen_codec, chosen_strategy, keep_those_of

settings.register_profile("on any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("on any machine")


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background ignores Ctrl-C, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin while they wait take the other tests' cores
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of hundreds of processes compiles all it loads
    sys.dont_write_bytecode = False
    torch.set_num_threads(1)  # for short vectors more of them cost more than they help: on busy cores 50 times as much
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        return  # others run the tests
    preload("tests.preload")
    warm_up()


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> None:
    """Begin as a script in a terminal does: a test before may have called one, which ignores interrupts at its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Gives a function that writes a module into the current directory, which is new, and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_{tmp_path.name}"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def user_module(own_module: Callable[[str], str]) -> Callable[[str], str]:
    """Gives a function that writes such a module and names its function `make`."""
    imports = "import numpy as np, torch\nfrom torch import nn\nfrom torch.utils.data import *\n"
    return lambda body: f"{own_module(f'{imports}{body}')}:make"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes a core, since half of the time is waiting; none for a few tests, which end before they start."""
    few = config.option.keyword or all(".py" in argument for argument in config.args)
    return 0 if few else 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long tests first, so that none is left when the others are done; only those of `--strategy` and `--codec`."""
    for item in items:
        if any(map(item.get_closest_marker, ("chaos", "end_to_end", "exhaustive"))):
            item.add_marker("slow")  # `-m "not slow"` leaves them out too
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip("needs a CUDA device"))
    for chosen in (chosen_strategy(config), chosen_codec(config)):
        if chosen:
            keep_those_of(chosen, config, items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays: the collector need not look through it again and again


def pytest_sessionfinish() -> None:
    gc.unfreeze()
    Pool.end_all()
    if engines := sys.modules.get("tests.core.launchers.engines"):
        engines.end_dask()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strategy", help="run only the tests of this one; or those of all, on yourmodule:Yours")
    parser.addoption("--codec", help="run only the tests of this codec; or those of all, on yourmodule:Yours")
    parser.addoption("--transport", help="put only this kind of transport through the contract: yourmodule:YourEngine")


# What an engine must do for a test that has an argument of this name.
ABLE: dict[str, Callable[[Engine], bool]] = {
    "engine": lambda engine: True,
    "engine_in_real_time": lambda engine: engine.real_time,
    "engine_that_tells": lambda engine: engine.deaths >= TOLD,
    "engine_that_survives": lambda engine: engine.deaths == SURVIVED,
}
_OF_THE_HOUSE = (*PROCESSES, "mpi", "simulated", *HELD_BACK)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.config.getoption("transport")
    for argument, is_able in ABLE.items():
        if argument in metafunc.fixturenames:
            names = [chosen] if chosen else _OF_THE_HOUSE
            able = [_marked(name) for name in names if is_able(engine_named(name))]
            metafunc.parametrize(argument, able)


def _marked(name: str) -> Any:
    marks = list(NEEDS_MPI) if name.startswith("mpi") else []
    if name in HELD_BACK:  # by default one of them
        marks.append(pytest.mark.slow if name == HELD_BACK[0] else pytest.mark.exhaustive)
    return pytest.param(name, marks=marks)
