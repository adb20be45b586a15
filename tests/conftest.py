"""Ranks start fast: the fork server of the test session has loaded once what every test module imports."""

from multiprocessing import forkserver

import pytest

from launchers.fork_server import start_context
from tests.ranks import ENGINES


def pytest_configure() -> None:
    context = start_context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["training.preload", "pytest", "hypothesis.strategies", "sklearn.datasets"])
        forkserver.ensure_running()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strategy", help="put only this one through the suites of all strategies; or yourmodule:Yours")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param
