"""Callbacks for the events of a rank while they are recorded."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Observer:
    """Callbacks for the events of a rank, no-ops by default; `Recorder.observers` lists the observers to call."""

    def span(self, phase: str, seconds: float, op: str, nbytes: int, version_read: int, version_applied: int) -> None:
        """A span has been recorded: see `Recorder.add`."""

    def mark(self, name: str, value: float) -> None:
        """A value has been measured: see `Recorder.mark`."""

    def in_phase(self, name: str) -> AbstractContextManager[None]:
        """Return the block in which the rank is in this phase."""
        return nullcontext()

    def holding(self, kind: str) -> AbstractContextManager[None]:
        """Return the block in which the rank allocates memory of this kind."""
        return nullcontext()

    def receive(self, message: Any, in_place: bool) -> None:
        """A message has been received; `in_place`: its memory is the sender's, if that wants it back."""

    def in_thread(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return what another thread of this rank is to call in place of `call`."""
        return call
