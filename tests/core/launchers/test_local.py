"""What the local launcher alone promises, above all when ranks die. Above each test stands what its ranks run."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradwire.core.launchers import Job
from gradwire.core.launchers.ranks import Ranks
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from gradwire.core.transports.timing import SLICE_S, RunningClock
from tests.core.launchers.engines import belongings
from tests.ranks import LIMIT, launch, wait_until


@pytest.fixture(autouse=True, scope="module")
def something_was_launched() -> None:
    """What stays open once anything was launched is open from here on."""
    launch(get_rank, 1)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test may leave a process, a thread, an open file or shared memory."""
    before = belongings()
    yield
    assert wait_until(lambda: not belongings() - before), belongings() - before


def failure(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        launch(work, world_size, *args, **options)
    return caught.value.with_traceback(None)  # whose frames would keep the processes' descriptors open


def get_rank(transport: Transport) -> int:
    return transport.rank


# Failures


class Odd(BaseException):
    """What no `except Exception` catches."""


def fail(transport: Transport, how: Any) -> None:
    if transport.rank == 1:
        if how == "os._exit":
            os._exit(3)
        if how == "sys.exit":
            sys.exit(3)
        raise how("on purpose")
    transport.recv(1, "x")


@pytest.mark.parametrize("how", ["os._exit", "sys.exit", Odd])
def test_a_rank_that_exits_or_raises_what_is_no_exception_is_told(how: Any) -> None:
    text = str(failure(fail, 2, how))
    exits = isinstance(how, str)
    told = "ended with exit code 3 before its work was done" if exits else f"raised {how.__name__}: on purpose"
    assert text.startswith(f"rank 1 (worker) {told}; meanwhile rank 0 (worker) waited for 'x' from rank 1")
    assert exits or "in fail" in text


def test_the_launcher_misses_no_rank_after_a_stop_of_everything() -> None:
    clock = [0.0]
    ranks = Ranks(Job(print, 2, timeout=5.0), running=RunningClock(lambda: clock[0]))
    ranks.last_heard = {0: 0.0, 1: 0.0}
    clock[0] += 86400
    assert ranks._silent() == {}
    while clock[0] < 86400 + 6:  # rank 1 alone is stopped
        clock[0] += SLICE_S
        ranks.last_heard[0] = ranks.running()
    assert list(ranks._silent()) == [1]


def be_stuck(transport: Transport) -> None:
    if transport.rank == 1:
        raise ValueError("on purpose")
    time.sleep(100 * LIMIT)


def test_a_rank_that_takes_no_notice_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.core.launchers.ranks._GRACE_S", 0.5)
    assert str(failure(be_stuck, 3)).startswith("rank 1 (worker) raised ValueError: on purpose")


def close_the_terminal(transport: Transport) -> bool:
    os.kill(os.getpid(), signal.SIGHUP)
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_rank_leaves_ctrl_c_and_a_terminal_that_closes_to_its_launcher() -> None:
    assert launch(close_the_terminal, 2) == [True, True]
