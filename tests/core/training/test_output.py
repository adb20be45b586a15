"""The end of a command: nobody reads what it says, or it is interrupted, more than once."""

import contextlib
import io
import os
import shlex
import signal
import subprocess
import sys

import pytest

from gradwire.command_line import run_command
from gradwire.core.records.interrupts import INTERRUPTS
from tests.ranks import LIMIT
from tests.runs import ROOT


def test_a_command_that_nobody_reads_does_all_its_work_and_says_so_in_its_exit_code() -> None:
    done = []

    def work() -> None:
        for number in range(3):
            print(f"{number}" * 10_000, flush=number == 1)
            print(f"{number}" * 10_000, file=sys.stderr)
            done.append(number)

    end, ours = os.pipe()
    os.close(end)
    with os.fdopen(ours, "w") as stream, contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = run_command(work, "")
        print("nothing is raised any more", flush=True)
    assert code == 128 + signal.SIGPIPE
    assert done == [0, 1, 2]


def test_a_character_that_the_output_cannot_show_is_escaped() -> None:
    written = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written, encoding="ascii")) as stream:
        assert run_command(lambda: print("\u00e9", flush=True)) == 0
        stream.flush()
    assert written.getvalue() == b"\\xe9\n"


def test_what_an_interrupt_ends_is_not_interrupted_by_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    ended = []

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            for number in (*INTERRUPTS, *INTERRUPTS):
                signal.raise_signal(number)
            ended.append(True)

    assert run_command(work, "nothing was written") == 130
    assert ended == [True]
    assert capsys.readouterr().err == "\nerror: ended by SIGINT; nothing was written\n"
    signal.raise_signal(signal.SIGINT)  # nor is the end of the program


def test_an_interrupt_that_was_lost_does_not_make_deaf() -> None:
    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt):  # as Python does where it cannot raise
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    assert run_command(work, "") == 128 + signal.SIGTERM


def test_a_closed_terminal_ends_a_run_but_for_nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it
    assert run_command(lambda: signal.raise_signal(signal.SIGHUP), "") == 128 + signal.SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert run_command(lambda: signal.raise_signal(signal.SIGHUP), "") == 0


def test_a_full_disk_is_one_line_and_the_rest_is_done(capfd: pytest.CaptureFixture[str]) -> None:
    done = []

    def work() -> None:
        print("some", flush=True)
        done.append(True)

    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        assert run_command(work) == 1
    assert done == [True]
    assert capfd.readouterr().err == (
        "error: cannot write to standard output: No space left on device; files are complete\n"
    )


def test_closed_standard_streams_are_opened_before_another_file_takes_their_numbers() -> None:
    script = (
        "import os, sys; from gradwire.core.records.interrupts import open_standard_streams;"
        " open_standard_streams(); print('x');"
        "sys.exit(os.open('/dev/null', os.O_RDONLY) > 2 and os.get_inheritable(1))"
    )
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(script)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], cwd=ROOT, timeout=LIMIT, check=False).returncode == 1
