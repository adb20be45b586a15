"""What the local launcher alone promises, above all when ranks die. Above each test stands what its ranks run."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from records.errors import RunFailed
from tests.launchers.engines import belongings
from tests.ranks import LIMIT, launch, outcome, wait_until
from transports.base import Transport

PROJECT = Path(__file__).resolve().parents[2]
Report = Callable[[Any], None]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test may leave a process, a thread, an open file or shared memory."""
    launch(get_rank, 1)  # what stays open once anything was launched is open now
    before = belongings()
    yield
    assert multiprocessing.active_children() == []
    assert wait_until(lambda: not belongings() - before), belongings() - before


def failure(work: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        launch(work, world_size, *args, **options)
    return caught.value.with_traceback(None)  # whose frames would keep the processes' descriptors open


# Results and reports


def get_rank(transport: Transport) -> int:
    return transport.rank


def finish_in_turn(transport: Transport, order: list[int]) -> tuple[int, int, int]:
    """The ranks end in the given order: each waits until the one before it has left."""
    place = order.index(transport.rank)
    if place > 0:
        outcome(transport.recv, order[place - 1], "never sent")
    return transport.rank, transport.world_size, os.getpid()


def test_results_come_in_rank_order_from_one_process_each() -> None:
    results = launch(finish_in_turn, 4, [2, 0, 3, 1])
    assert [(rank, world_size) for rank, world_size, _ in results] == [(rank, 4) for rank in range(4)]
    pids = {pid for *_, pid in results}
    assert len(pids | {os.getpid()}) == 5
    assert not any(psutil.pid_exists(pid) for pid in pids)


def report_and_stay(transport: Transport, report: Report) -> None:
    report("hello")
    transport.barrier()
    time.sleep(2)


@pytest.mark.slow
def test_ranks_are_not_given_up_while_on_report_takes_its_time() -> None:
    def take_time(rank: int, value: Any) -> None:
        time.sleep(3)

    assert outcome(launch, report_and_stay, 2, on_report=take_time, timeout=5.0) == [None, None]


# Failures


def be_killed(transport: Transport) -> None:
    if transport.rank == 2:
        transport.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    transport.barrier()
    transport.recv(2 if transport.rank == 0 else 0, f"word for {transport.rank}")


def test_a_killed_rank_is_told_with_its_role_and_what_others_waited_for() -> None:
    text = str(failure(be_killed, 4, roles=["server", "worker", "evaluator", "worker"]))
    assert text.startswith("rank 2 (evaluator) was killed by SIGKILL; meanwhile ")
    assert "rank 0 (server) waited for 'word for 0' from rank 2" in text
    assert "rank 1 (worker) waited for 'word for 1' from rank 0" in text
    assert "rank 3 (worker) waited for 'word for 3' from rank 0" in text


def leave(transport: Transport, how: str) -> None:
    if transport.rank == 0:
        if how == "os._exit":
            os._exit(3)
        sys.exit(3)
    transport.recv(0, "x")


@pytest.mark.parametrize("how", ["os._exit", "sys.exit"])
def test_a_rank_that_exits_is_told_with_its_exit_code(how: str) -> None:
    text = str(failure(leave, 2, how))
    assert text.startswith("rank 0 (worker) ended with exit code 3 before its work was done")
    assert "rank 1 (worker) waited for 'x' from rank 0" in text


def stop(transport: Transport, timeout: float) -> None:
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.recv(1, "x", timeout=timeout)


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [10 * LIMIT, 1.0])
def test_a_stopped_rank_is_named_though_another_may_time_out_first(timeout: float) -> None:
    text = str(failure(stop, 2, timeout, timeout=4.0))
    assert text.startswith("rank 1 (worker) has not answered")
    assert "rank 0 (worker) waited for 'x' from rank 1" in text or timeout == 1.0


def hang_behind_others(transport: Transport) -> None:
    if transport.rank == 2:
        time.sleep(600)
    transport.recv(transport.rank + 1, "x", timeout=1.0 if transport.rank == 1 else 600.0)


@pytest.mark.slow
def test_of_ranks_that_wait_in_a_row_the_last_is_named() -> None:
    text = str(failure(hang_behind_others, 3))
    assert text.startswith("rank 2 (worker) kept others waiting and did not wait for any rank")
    assert "rank 0 (worker) waited for 'x' from rank 1, rank 1 (worker) waited for 'x' from rank 2" in text


def die_before_the_server_is_ready(transport: Transport) -> None:
    if transport.rank == 1 and not transport.rejoined:
        os.kill(os.getpid(), signal.SIGKILL)
    transport.recv(1 - transport.rank, "hello")


def test_a_death_during_the_start_is_told_though_the_rank_is_started_again() -> None:
    text = str(failure(die_before_the_server_is_ready, 2, roles=["server", "worker"], expendable=[1], restarts=1))
    assert text.startswith("rank 1 (worker) was killed by SIGKILL; meanwhile rank 0 (server) waited for 'hello'")


def be_stuck(transport: Transport) -> None:
    if transport.rank == 1:
        raise ValueError("on purpose")
    time.sleep(100 * LIMIT)


@pytest.mark.slow
def test_a_rank_that_takes_no_notice_is_ended() -> None:
    assert str(failure(be_stuck, 3)).startswith("rank 1 (worker) raised ValueError: on purpose")


class Odd(BaseException):
    """What no `except Exception` catches."""


def raise_what_is_no_exception(transport: Transport, kind: type[BaseException]) -> None:
    raise kind("on purpose")


@pytest.mark.parametrize("kind", [Odd, GeneratorExit, KeyboardInterrupt])
def test_what_is_raised_and_is_no_exception_is_told_too(kind: type[BaseException]) -> None:
    error = str(failure(raise_what_is_no_exception, 1, kind))
    assert error.startswith(f"rank 0 (worker) raised {kind.__name__}: on purpose")
    assert "in raise_what_is_no_exception" in error


def close_the_terminal(transport: Transport) -> int:
    os.kill(os.getpid(), signal.SIGHUP)
    return transport.rank


def test_a_rank_takes_no_notice_of_a_terminal_that_closes() -> None:
    assert launch(close_the_terminal, 2) == [0, 1]


# The launcher itself


def outlive(transport: Transport, report: Report) -> None:
    report(os.getpid())
    while transport.rank == 0:  # one computes, the other waits
        pass
    transport.recv(0, "x", timeout=100 * LIMIT)


def print_and_launch() -> None:
    launch(outlive, 2, on_report=lambda rank, pid: print(pid, flush=True))


@pytest.mark.slow
def test_ranks_end_when_their_launcher_is_killed() -> None:
    script = "from tests.launchers.test_local import print_and_launch; print_and_launch()"
    launcher = subprocess.Popen(
        [sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with launcher:
        assert launcher.stdout is not None
        ranks = [psutil.Process(int(launcher.stdout.readline())) for _ in range(2)]
        children = psutil.Process(launcher.pid).children(recursive=True)
        assert set(ranks) <= set(children)
        launcher.kill()
        _, alive = psutil.wait_procs([*ranks, *children], timeout=LIMIT)
        for process in alive:
            process.kill()
        assert alive == []
        launcher.wait(timeout=LIMIT)
