"""What a session of tests shows, and that Ctrl-C ends it with one message."""

import io
import signal
from types import SimpleNamespace
from typing import Any

from tqdm import tqdm

from tests.progress import Progress
from tests.ranks import launch
from transports.base import Transport


def report(outcome: str, when: str = "call") -> Any:
    return SimpleNamespace(
        outcome=outcome, when=when, nodeid="a.py::slow", passed=outcome == "passed", failed=outcome == "failed",
        skipped=outcome == "skipped",
    )  # fmt: skip


def test_the_bar_names_the_test_that_runs_for_the_longest_time() -> None:
    shown = io.StringIO()
    progress = Progress(tqdm(total=1, file=shown, mininterval=0, ncols=100))
    progress.pytest_xdist_node_collection_finished(["a.py::slow", "a.py::fast", "a.py::next"])
    progress.pytest_runtest_logstart("a.py::slow")
    progress.pytest_runtest_logstart("a.py::fast")
    progress.pytest_runtest_logfinish("a.py::fast")
    progress.pytest_runtest_logstart("a.py::next")
    assert "1/3" in shown.getvalue()
    assert "a.py::slow" in shown.getvalue()
    assert "a.py::next" not in shown.getvalue()
    progress.pytest_runtest_logreport(report("failed"))
    assert "FAILED a.py::slow (call)\n" in shown.getvalue(), "a failed test is named at once"
    progress.pytest_unconfigure()
    told = [
        progress.pytest_report_teststatus(report(*one))
        for one in (("passed",), ("failed", "setup"), ("skipped", "setup"))
    ]
    assert told == [("passed", "", ""), ("error", "", "ERROR"), ("skipped", "", "")], "no letters, and the counts"
    assert progress.pytest_report_teststatus(report("passed", "setup")) is None


def blocks_interrupts(transport: Transport) -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_what_the_tests_start_leaves_ctrl_c_to_pytest() -> None:
    assert launch(blocks_interrupts, 1) == [True]
