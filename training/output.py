"""What a command prints, whose reader may stop reading: `train.py ... | head -1`, a terminal that was closed."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Output:
    """A stream that goes nowhere once nobody reads it; `unread` says so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.unread = False

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
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self.unread = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unread_output_is_no_error() -> Iterator[Output]:
    """In the block, let what nobody reads be dropped; give the standard output."""
    streams = sys.stdout, sys.stderr
    output, errors = map(Output, streams)
    sys.stdout, sys.stderr = output, errors
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = streams
