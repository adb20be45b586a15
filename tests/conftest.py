"""Ranks start fast: the fork server of the test session has loaded once what every test module imports."""

from multiprocessing import forkserver

from training.launch import start_context


def pytest_configure() -> None:
    context = start_context()
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["training.preload", "pytest", "hypothesis.strategies", "sklearn.datasets"])
        forkserver.ensure_running()
