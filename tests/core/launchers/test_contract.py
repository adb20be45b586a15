"""What every launcher promises. Above each test stands what its ranks run. Special to one: see its own file."""

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch

from gradwire.core.launchers import Job
from gradwire.core.launchers.ranks import Ranks
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.transports.base import Transport
from gradwire.core.transports.timing import SLICE_S, RunningClock
from tests.core.launchers.engines import ENGINES, LauncherEngine, params
from tests.ranks import LIMIT

Report = Callable[[Any], None]
ROLES = ("server", "worker", "worker", "worker")


@pytest.fixture(params=params())
def launcher(request: pytest.FixtureRequest) -> Iterator[LauncherEngine]:
    """A launcher; no test may leave anything, here or in the ranks that others have started."""
    launcher = engine_of(request.param)
    before = launcher.belongings()
    yield launcher
    assert launcher.has_left_nothing(before), (before, launcher.belongings())


@cache
def engine_of(name: str) -> LauncherEngine:
    """Return an engine on which something has run: what stays open then is open now."""
    engine = ENGINES[name](name)
    engine.launch(get_rank)
    return engine


def get_rank(transport: Transport) -> int:
    return transport.rank


def bring_all(transport: Transport, report: Report, first: str, second: bytes) -> tuple[Any, ...]:
    for number in range(100):
        report((transport.rank, number))
    report(second)  # larger than a pipe
    transport.barrier()
    transport.recorder.add("data", 0.0, 1.0)
    facts = transport.rank, transport.world_size, str(transport.device), len(transport.recorder.frame())
    return *facts, first, second, torch.full((100_000,), transport.rank)


def test_ranks_get_what_launch_was_told_and_report_in_order(launcher: LauncherEngine) -> None:
    large = bytes(500_000)
    found = launcher.launch(bring_all, "first", large, reports=True)
    assert found.errors == {}
    assert [result[:-1] for result in found.results] == [
        (r, launcher.n, "cpu", 0, "first", large) for r in range(launcher.n)
    ]
    assert all(torch.equal(vectors[-1], torch.full((100_000,), rank)) for rank, vectors in enumerate(found.results))
    for rank in range(launcher.n):
        of_rank = [value for src, value in found.reports if src == rank]
        assert of_rank == [*((rank, number) for number in range(100)), large]


def describe(transport: Transport) -> tuple[float, int, list[float]]:
    transport.recorder.add("data", 0.0, 1.0)
    return transport.timeout, len(transport.recorder.frame()), torch.rand(3).tolist()


def test_ranks_have_the_limit_the_events_and_the_random_state_that_were_asked_for(launcher: LauncherEngine) -> None:
    limits, events, drawn = zip(*launcher.launch(describe, timeout=77.0, record=True, seed=5).results, strict=True)
    assert launcher.name == "virtual time" or set(limits) == {77.0}
    assert events == (1,) * launcher.n
    generators = [torch.Generator().manual_seed(5 + 1 + rank) for rank in range(launcher.n)]
    assert list(drawn) == [torch.rand(3, generator=generator).tolist() for generator in generators]


IN_A_SCRIPT = """
class Mine:
    def __init__(self, value):
        self.value = value

def double(transport, mine):
    return Mine(2 * mine.value)
"""


def test_work_may_be_defined_anywhere(launcher: LauncherEngine) -> None:
    base, script = 10, dict[str, Any](__name__="__main__")
    exec(IN_A_SCRIPT, script)
    assert launcher.launch(lambda transport: base + transport.rank).results == [10 + rank for rank in range(launcher.n)]
    double, mine = script["double"], script["Mine"]
    if not launcher.is_member:  # whose ranks run the script themselves
        assert [result.value for result in launcher.launch(double, mine(21)).results] == [42] * launcher.n


def signal_of_a_parents_death(transport: Transport) -> int:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG of <linux/prctl.h>
    return number.value


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
@pytest.mark.parametrize("launcher", params("local", "torchrun", "mpi"), indirect=True)
def test_the_kernel_ends_a_rank_with_who_started_it(launcher: LauncherEngine) -> None:
    assert launcher.launch(signal_of_a_parents_death).results == [signal.SIGKILL] * launcher.n


# Failures


def fail(transport: Transport, kind: str) -> Any:
    transport.barrier()
    if transport.rank == 1:
        raise {"raised": KeyError, "usage": UsageError, "stopped": RunFailed}[kind]("the reason")
    return transport.recv(1, "its part")


FAILURES = {
    "raised": (1, r"rank 1 \(worker\) raised KeyError: 'the reason'; meanwhile rank 0 \(server\) waited for"),
    "usage": (2, r"the reason$"),
    "stopped": (1, r"rank 1 \(worker\): the reason$"),
}


@pytest.mark.parametrize(
    ("launcher", "kind"),
    [
        *(pytest.param(*param.values, "raised", marks=param.marks) for param in params()),
        *(pytest.param(*param.values, "usage", marks=param.marks) for param in params("torchrun", "virtual time")),
        *(pytest.param(*param.values, "stopped", marks=param.marks) for param in params("local", "dask")),
    ],
    indirect=["launcher"],
)
def test_a_rank_that_fails_is_named(launcher: LauncherEngine, kind: str) -> None:
    code, told = FAILURES[kind]
    errors = launcher.launch(fail, kind, roles=ROLES[: launcher.n]).errors
    said, exit_code = errors.pop(1 if launcher.is_member else None)
    assert exit_code == code
    if launcher.is_member:  # rank 1 raises it; its peers, which it has left waiting, name it
        assert "the reason" in said
        assert sorted(errors) == [rank for rank in range(launcher.n) if rank != 1]  # type: ignore[type-var]
        # On torch.distributed a death ends every wait of a peer, also that of the barrier.
        assert all(re.match(rf"rank {rank}: lost rank \d: ", text) for rank, (text, _) in errors.items()), errors
        assert any("lost rank 1: " in text for text, _ in errors.values()), errors
        return
    assert errors == {}
    assert re.match(told.partition("; meanwhile")[0] if launcher.name == "virtual time" else told, said), said
    assert ("in fail" in said) == (kind == "raised") or launcher.name == "dask"


def wait_in_a_circle(transport: Transport) -> None:
    transport.recv((transport.rank + 1) % transport.world_size, "its part", timeout=0.5)


def test_ranks_that_wait_for_each_other_time_out(launcher: LauncherEngine) -> None:
    errors = launcher.launch(wait_in_a_circle, timeout=20.0).errors
    for text, code in errors.values():
        assert code == 1
        assert "'its part' from rank" in text
        assert "--timeout" in text or "lost rank" in text
    assert any("--timeout" in text for text, _ in errors.values())


def return_a_lock(transport: Transport) -> Any:
    transport.barrier()
    return threading.Lock() if transport.rank == 1 else None


@pytest.mark.parametrize("launcher", params("local", "torchrun", "mpi", "dask"), indirect=True)
def test_a_result_that_cannot_be_sent_is_told(launcher: LauncherEngine) -> None:
    text, code = launcher.launch(return_a_lock, roles=ROLES[: launcher.n]).errors[1 if launcher.is_member else None]
    assert code == 1
    assert "cannot pickle" in text
    assert launcher.is_member or "rank 1 (worker)" in text


def report_for_ever(transport: Transport, report: Report) -> None:
    while True:
        if transport.rank < 2:
            if transport.rank == 0:
                report("still here")
            transport.isend(None, 1 - transport.rank, "turn")
        transport.recv(1 - transport.rank if transport.rank < 2 else 0, "turn")


@pytest.mark.parametrize("launcher", params("local", "dask"), indirect=True)
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_in_on_report_ends_the_ranks_and_reaches_the_caller(
    launcher: LauncherEngine, error: type[BaseException]
) -> None:
    def refuse(rank: int, value: Any) -> None:
        raise error("refused")

    with pytest.raises(error, match="refused"):
        launcher.launcher()(Job(report_for_ever, launcher.n, on_report=refuse, timeout=LIMIT))


# What the local one alone promises

LOCAL = pytest.mark.parametrize("launcher", params("local"), indirect=True)


class Odd(BaseException):
    """What no `except Exception` catches."""


def end_oddly(transport: Transport, how: Any) -> None:
    if transport.rank == 1:
        if how == "os._exit":
            os._exit(3)
        if how == "sys.exit":
            sys.exit(3)
        raise how("on purpose")
    transport.recv(1, "x")


@LOCAL
@pytest.mark.parametrize("how", ["os._exit", "sys.exit", Odd])
def test_a_rank_that_exits_or_raises_what_is_no_exception_is_told(launcher: LauncherEngine, how: Any) -> None:
    text, _ = launcher.launch(end_oddly, how).errors[None]
    exits = isinstance(how, str)
    told = "ended with exit code 3 before its work was done" if exits else f"raised {how.__name__}: on purpose"
    assert text.startswith(f"rank 1 (worker) {told}; meanwhile rank 0 (worker) waited for 'x' from rank 1")
    assert exits or "in end_oddly" in text


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


@LOCAL
def test_a_rank_that_takes_no_notice_is_ended(launcher: LauncherEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.core.launchers.ranks._GRACE_S", 0.5)
    assert launcher.launch(be_stuck).errors[None][0].startswith("rank 1 (worker) raised ValueError: on purpose")


def close_the_terminal(transport: Transport) -> bool:
    os.kill(os.getpid(), signal.SIGHUP)
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@LOCAL
def test_a_rank_leaves_ctrl_c_and_a_terminal_that_closes_to_its_launcher(launcher: LauncherEngine) -> None:
    assert launcher.launch(close_the_terminal).results == [True] * launcher.n
