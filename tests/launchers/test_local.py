"""What `launchers.local.launch` promises, above all when ranks fail. Above each test stands what its ranks run."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from launchers import launch
from records.errors import RunFailed, UsageError
from tests.ranks import LIMIT, left_in_shared_memory, outcome, wait_until
from transports.base import Transport

PROJECT = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000
Report = Callable[[Any], None]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No test may leave a process, a thread, an open file or shared memory."""
    launch(get_rank, 1)  # what stays open once anything was launched is open now
    before = _belongings()
    yield
    assert multiprocessing.active_children() == []
    # Listening threads, and memory of other programs, end a moment later.
    gc.collect()
    assert wait_until(lambda: not _belongings() - before), _belongings() - before


def _belongings() -> set[tuple[str, Any]]:
    this = psutil.Process()
    return {
        *(("process", child.pid) for child in this.children(recursive=True)),
        *(("thread", thread.ident) for thread in threading.enumerate()),
        *(
            ("file descriptor", entry)
            for entry in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{entry}")
        ),
        *(("shared memory", path.name) for path in Path("/dev/shm").glob(f"torch_{this.pid}_*")),
        *(("shared memory", name) for name in left_in_shared_memory()),
    }


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


def test_one_rank_is_a_world_too() -> None:
    assert launch(get_rank, 1) == [0]


def bring_much(transport: Transport, report: Report) -> bytes:
    report(bytes(10 * MEGABYTE))
    return bytes([transport.rank]) * 10 * MEGABYTE


def test_results_and_reports_may_be_larger_than_a_pipe() -> None:
    reports = []
    results = launch(bring_much, 2, on_report=lambda rank, value: reports.append((rank, len(value))))
    assert results == [bytes([rank]) * 10 * MEGABYTE for rank in range(2)]
    assert sorted(reports) == [(0, 10 * MEGABYTE), (1, 10 * MEGABYTE)]


def bring_a_tensor(transport: Transport) -> tuple[torch.Tensor, torch.Tensor]:
    return transport.allocate(10).fill_(transport.rank), torch.full((MEGABYTE,), transport.rank)


def test_results_may_hold_tensors() -> None:
    for _ in range(5):
        results = outcome(launch, bring_a_tensor, 2)
        assert not isinstance(results, tuple), results
        for rank, (allocated, plain) in enumerate(results):
            assert torch.equal(allocated, torch.full((10,), float(rank)))
            assert torch.equal(plain, torch.full((MEGABYTE,), rank))


def report_often(transport: Transport, report: Report, n: int) -> int:
    for number in range(n):
        report((transport.rank, number))
    return n


def test_reports_of_each_rank_come_in_order_and_before_launch_returns() -> None:
    reports: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    assert launch(report_often, 3, 500, on_report=lambda rank, value: reports[rank].append(value)) == [500] * 3
    assert reports == {rank: [(rank, number) for number in range(500)] for rank in range(3)}


def test_an_error_in_on_report_reaches_the_caller() -> None:
    def refuse(rank: int, value: Any) -> None:
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"):
        launch(report_often, 2, 10, on_report=refuse)


def report_and_stay(transport: Transport, report: Report) -> None:
    report("hello")
    transport.barrier()
    time.sleep(2)


@pytest.mark.slow
def test_ranks_are_not_given_up_while_on_report_takes_its_time() -> None:
    def take_time(rank: int, value: Any) -> None:
        time.sleep(3)

    assert outcome(launch, report_and_stay, 2, on_report=take_time, timeout=5.0) == [None, None]


def describe(transport: Transport) -> Any:
    transport.recorder.add("data", 0.0, 1.0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads() == max(1, cores // transport.world_size)
    return transport.timeout, str(transport.device), len(transport.recorder.frame()), threads


@pytest.mark.parametrize("record", [True, False])
def test_ranks_get_what_launch_was_told(record: bool) -> None:
    assert launch(describe, 2, timeout=77.0, record=record) == [(77.0, "cpu", int(record), True)] * 2


# Failures


def raise_in_one(transport: Transport, raiser: int) -> None:
    if transport.rank == raiser:
        raise ZeroDivisionError("nothing to divide by")
    transport.recv(raiser, "its part")


def test_an_exception_is_told_with_rank_role_and_traceback() -> None:
    error = failure(raise_in_one, 3, 1, roles=["server", "worker", "worker"])
    first, *rest = str(error).splitlines()
    assert first.startswith("rank 1 (worker) raised ZeroDivisionError: nothing to divide by; meanwhile ")
    assert "rank 0 (server) waited for 'its part' from rank 1" in first
    assert "rank 2 (worker) waited for 'its part' from rank 1" in first
    assert "in raise_in_one" in "\n".join(rest)
    assert rest[-1] == "ZeroDivisionError: nothing to divide by"
    assert error.exit_code == 1


def refuse_input(transport: Transport, kind: str) -> None:
    if transport.rank == 1:
        raise {"usage": UsageError, "stopped": RunFailed}[kind]("the reason")
    transport.recv(1, "x")


def test_bad_input_and_a_stop_are_told_without_a_traceback() -> None:
    usage, stopped = failure(refuse_input, 2, "usage"), failure(refuse_input, 2, "stopped")
    assert (str(usage), usage.exit_code) == ("the reason", 2)
    assert (str(stopped), stopped.exit_code) == ("rank 1 (worker): the reason", 1)


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


def stop(transport: Transport) -> None:
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.recv(1, "x", timeout=10 * LIMIT)


@pytest.mark.slow
def test_a_stopped_rank_is_given_up_after_the_time_out() -> None:
    text = str(failure(stop, 2, timeout=4.0))
    assert text.startswith("rank 1 (worker) has not answered for more than 4 s (--timeout)")
    assert "rank 0 (worker) waited for 'x' from rank 1" in text


def wait_for_a_stopped_rank(transport: Transport) -> None:
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    transport.recv(1, "x", timeout=1.0)


@pytest.mark.slow
def test_a_stopped_rank_is_named_though_another_timed_out_first() -> None:
    assert str(failure(wait_for_a_stopped_rank, 2)).startswith("rank 1 (worker) has not answered")


def wait_in_a_circle(transport: Transport) -> None:
    transport.recv(1 - transport.rank, f"part of {1 - transport.rank}", timeout=0.5)


def test_ranks_that_wait_for_each_other_time_out() -> None:
    text = str(failure(wait_in_a_circle, 2, timeout=20.0))
    assert "'part of 0' from rank 0" in text
    assert "'part of 1' from rank 1" in text
    assert "raise --timeout" in text


def hang_behind_others(transport: Transport) -> None:
    if transport.rank == 2:
        time.sleep(600)
    transport.recv(transport.rank + 1, "x", timeout=1.0 if transport.rank == 1 else 600.0)


@pytest.mark.slow
def test_of_ranks_that_wait_in_a_row_the_last_is_named() -> None:
    text = str(failure(hang_behind_others, 3))
    assert text.startswith("rank 2 (worker) kept others waiting and itself waited for nobody")
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


def return_what_cannot_be_sent(transport: Transport) -> Any:
    return lambda: transport.rank


def test_a_result_that_cannot_be_pickled_is_told() -> None:
    assert "pickle" in str(failure(return_what_cannot_be_sent, 1))


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
