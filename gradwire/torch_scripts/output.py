"""The output of a rank."""

import codecs
import io
from typing import Any

from tqdm import tqdm


class Lines(io.TextIOBase):
    """Passes on what a rank prints, whole lines, each with its rank before it."""

    encoding = "utf-8"

    def __init__(self, rank: int, to: Any) -> None:
        self._prefix, self._to, self._begun = f"rank {rank}: ", to, ""

    @property
    def buffer(self) -> "Bytes":
        """See io: what takes bytes."""
        return Bytes(self)

    def fileno(self) -> int:
        """Return the file descriptor; output written to it has no prefix."""
        number: int = self._to.fileno()
        return number

    def reconfigure(self, **_: Any) -> None:
        """See io: each line is passed on at once, whatever is asked for."""

    def writable(self) -> bool:
        """See io."""
        return True

    def write(self, text: str) -> int:
        """See io."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            tqdm.write(f"{self._prefix}{line}", self._to)
        return len(text)

    def flush(self) -> None:
        """See io: a line that is not finished is kept, until `end`."""
        self._to.flush()

    def end(self) -> None:
        """Finish the last line, and close: later, what it writes to may be closed."""
        if self._begun:
            self.write("\n")
        self.close()


class Bytes(io.BufferedIOBase):
    """Passes on bytes, which are text, to the lines of a rank."""

    def __init__(self, lines: Lines) -> None:
        self._lines, self._decoder = lines, codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        """See io."""
        return True

    def write(self, data: Any) -> int:
        """See io."""
        self._lines.write(self._decoder.decode(bytes(data)))
        return len(data)

    def flush(self) -> None:
        """See io."""
        self._lines.flush()

    def fileno(self) -> int:
        """See io."""
        return self._lines.fileno()
