"""The end of a command: nobody reads what it says, or it is interrupted, more than once."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from records.errors import RunFailed
from records.interrupts import INTERRUPTS
from training.command_line import guarded


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Let nobody read what is printed in the block."""
    end, ours = os.pipe()
    os.close(end)
    with os.fdopen(ours, "w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield


def test_a_command_that_nobody_reads_does_all_its_work_and_says_so_in_its_exit_code() -> None:
    done = []

    def work() -> None:
        for number in range(3):
            print(f"{number}" * 10_000, flush=number == 1)
            print(f"{number}" * 10_000, file=sys.stderr)
            done.append(number)

    with unread():
        code = guarded(work, "")
        print("nothing is raised any more", flush=True)
    assert code == 128 + signal.SIGPIPE
    assert done == [0, 1, 2]


def test_a_failure_of_which_nobody_reads_is_a_failure() -> None:
    def work() -> None:
        print("some", flush=True)
        raise RunFailed("the replay has come to other parameters")

    with unread():
        code = guarded(work, "")
    assert code == 1


def test_what_an_interrupt_ends_is_not_interrupted_by_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            for number in (*INTERRUPTS, *INTERRUPTS):
                signal.raise_signal(number)
            ended.append(True)

    assert guarded(work, "nothing was written") == 130
    assert ended == [True]
    assert capsys.readouterr().err == "\nerror: ended by SIGINT; nothing was written\n"
    signal.raise_signal(signal.SIGINT)  # nor is the end of the program


class InterruptedOutput(io.StringIO):
    """A stream that is interrupted whenever something is written to it."""

    def write(self, text: str) -> int:
        """See TextIO."""
        signal.raise_signal(signal.SIGTERM)
        return super().write(text)


def test_what_is_said_of_a_failure_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        raise RunFailed("rank 1 failed")

    monkeypatch.setattr(sys, "stderr", errors := InterruptedOutput())
    assert guarded(work) == 1
    assert errors.getvalue() == "error: rank 1 failed\n"


def test_an_interrupt_that_was_lost_does_not_make_deaf() -> None:
    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as Python does where it cannot raise
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    assert guarded(work, "") == 128 + signal.SIGTERM


def test_a_closed_terminal_ends_a_run_but_for_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    assert guarded(lambda: signal.raise_signal(signal.SIGHUP), "") == 128 + signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert guarded(lambda: signal.raise_signal(signal.SIGHUP), "") == 0


def test_an_interrupt_of_the_users_own_is_one_too() -> None:
    def work() -> None:
        raise KeyboardInterrupt("enough")

    assert guarded(work, "") == 130
