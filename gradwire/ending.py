"""How a command ends: with errors in one line, by interrupts, or with output that cannot be written."""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.interrupts import INTERRUPTS, number_of


def end_while_loading(kept: str, clean_up: Callable[[], object] = lambda: None) -> None:
    """Open the standard streams that are closed; have an interrupt end this process at once.

    An interrupt then calls `clean_up` and prints `kept`, one line on the results that are kept.

    For a script that imports for seconds: an exception that a signal raises amid an import may be lost in it, and may
    be passed through C++ code that aborts.
    """

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # one is enough
        clean_up()
        with suppress(OSError):  # its reader may have gone
            os.write(2, f"\nerror: ended by {signal.Signals(number).name}; {kept}\n".encode())
        os._exit(128 + number)

    open_standard_streams()
    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is in the background, and under nohup
            signal.signal(number, end)


def open_standard_streams() -> None:
    """Open the null device in place of a standard stream that is closed: else the next file gets its descriptor."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w"))  # noqa: SIM115 - open to the end


class Output:
    """A stream that goes nowhere once it cannot be written; `unread` says that its reader has gone, `lost` why else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.unread = False
        self.lost = ""
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write, as to any stream."""
        with self._noticing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, as any stream."""
        with self._noticing():
            self._stream.flush()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self.unread = True
            else:
                self.lost = error.strerror or str(error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unread_output_is_no_error() -> Iterator[Output]:
    """In the block, drop what cannot be written; give the standard output."""
    open_standard_streams()
    streams = sys.stdout, sys.stderr
    output, errors = map(Output, streams)
    sys.stdout, sys.stderr = output, errors
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = streams


def exit_code_of(output: Output, code: int) -> int:
    """Return the exit code of a command that ended with `code` and printed to `output`; report lost output."""
    if output.lost:
        print(f"error: cannot write to standard output: {output.lost}; files are complete", file=sys.stderr)
        return code or 1
    return 128 + signal.SIGPIPE if output.unread and code == 0 else code


def run_command(work: Callable[[], object], kept: str | None = None) -> int:
    """Call `work` and return the exit code; an error becomes one line.

    `kept`: what an interrupt leaves; None: what its second argument says, or nothing.
    """
    over, code = False, 0

    def interrupt(number: int, _: FrameType | None) -> None:
        if not (over or _is_interrupted()):
            raise KeyboardInterrupt(number)

    for number in INTERRUPTS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, interrupt)
    with unread_output_is_no_error() as output:
        try:
            try:
                work()
            finally:
                over = True  # an mpirun that ends all ranks must not interrupt the message that follows
        except (UsageError, RunFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code if isinstance(error, RunFailed) else 2
        except KeyboardInterrupt as error:
            kept = kept or (error.args[1] if len(error.args) > 1 else "nothing was written")
            came = error.args  # a signal has its number
            what = f"ended by {signal.Signals(number_of(error)).name}" if came else "the code raised KeyboardInterrupt"
            print(f"\nerror: {what}; {kept}", file=sys.stderr)
            code = 128 + number_of(error) if came else 1
        output.flush()
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)  # all is done, and said
    return exit_code_of(output, code)


def _is_interrupted() -> bool:
    """Return whether an interrupt is ending the run already, which is not to be interrupted."""
    error = sys.exception()
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
