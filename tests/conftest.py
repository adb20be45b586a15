"""Ranks start fast: the fork server of the test session has loaded once what every test module imports."""

import gc
import os
import signal
from collections.abc import Sequence
from multiprocessing import forkserver
from typing import Any

import pytest

from launchers.fork_server import start_context
from tests.ranks import ENGINES, HELD_BACK, PROCESSES


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background ignores Ctrl-C, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin while they wait take the other tests' cores
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # others run the tests
    context = start_context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["tests.preload"])
        forkserver.ensure_running()


@pytest.fixture(autouse=True)
def interrupts_are_heard() -> None:
    """Begin as a script in a terminal does: a test before may have called one, which ignores interrupts at its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes a core, since half of the time is waiting; none for a few tests, which end before they start."""
    few = config.option.keyword or all(".py" in argument for argument in config.args)
    return 0 if few else 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests first, so that none is left when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is loaded stays: the collector need not look through it again and again


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strategy", help="put only this one through the suites of all strategies; or yourmodule:Yours")


def _held_back_is_slow(engines: Sequence[str]) -> list[Any]:
    return [pytest.param(one, marks=[pytest.mark.slow] if one in HELD_BACK else []) for one in engines]


@pytest.fixture(params=_held_back_is_slow(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=_held_back_is_slow((*PROCESSES, *HELD_BACK)))
def engine_of_processes(request: pytest.FixtureRequest) -> str:
    return request.param
