"""What a session of tests needs, and which of them run: a bar in place of pytest's dots.

With `-v` pytest names each test itself, and there is no bar.
"""

import importlib.util
import os
import shutil
import sys

import pytest
from tqdm import tqdm

OPTIONAL = {  # what some tests need, and are skipped without
    "mpirun": lambda: shutil.which("mpirun") and importlib.util.find_spec("mpi4py"),
    "Dask": lambda: importlib.util.find_spec("distributed"),
    "DALI": lambda: importlib.util.find_spec("nvidia.dali") if importlib.util.find_spec("nvidia") else None,
    "Chromium": lambda: shutil.which("chromium") and shutil.which("chromedriver"),
    "a GPU": lambda: os.path.exists("/dev/nvidia0"),
}


def header() -> list[str]:
    """Return what the tests need, what is here, and how busy the machine is."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    missing = [name for name, find in OPTIONAL.items() if not find()]
    lines = [f"machine: {cores} cores with a load of {load:.1f}; two test processes a core need 1 GB of memory each"]
    if missing:
        lines.append(f"not here: {', '.join(missing)}; the tests that need them are skipped (-rs says which)")
    return lines


class Progress:
    """A bar on stderr that counts the tests and names the one that has been running for the longest time."""

    def __init__(self, bar: "tqdm[None]") -> None:
        self.bar = bar
        self.running: dict[str, None] = {}  # in the order in which they began

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Set the number of tests, which every worker of xdist reports."""
        self.bar.total = len(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Set the number of tests, without xdist."""
        if session.items:
            self.bar.total = len(session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Name the test that has begun first."""
        self.running[nodeid] = None
        self._show()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Count a test."""
        self.running.pop(nodeid, None)
        self._show()
        self.bar.update()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a failed test at once."""
        if report.failed:
            self.bar.write(f"FAILED {report.nodeid} ({report.when})", file=self.bar.fp)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letter for a test; the word stands in the summary."""
        if report.when == "call" or not report.passed:
            category = report.outcome if report.when == "call" or report.skipped else "error"
            return (category, "", category.upper() if report.failed else "")
        return None

    def pytest_unconfigure(self) -> None:
        """End the bar."""
        self.bar.close()

    def _show(self) -> None:
        self.bar.set_postfix_str(next(iter(self.running), "").removeprefix("tests/"), refresh=False)


def show_progress(config: pytest.Config) -> None:
    """Have a session show its progress, unless it is verbose, or a part of another one."""
    if config.option.verbose >= 0 or config.option.collectonly:
        return
    terminal = os.fdopen(os.dup(sys.stderr.fileno()), "w")  # where a test's output is captured, the bar's is not
    seconds = 0.2 if terminal.isatty() else 30.0
    print("\n".join(header()), file=terminal, flush=True)
    bar = tqdm(unit="test", file=terminal, mininterval=seconds, maxinterval=max(10.0, seconds), dynamic_ncols=True)
    config.pluginmanager.register(Progress(bar))
