"""How long the judge waits: not for ever, and not for time in which nobody could have worked."""

import os

import pytest

from lessons import patience
from lessons.patience import Patience


class Clock:
    """A process that gets a processor for a part of the time, and says something in the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, delayed: float, calls: int) -> None:
        self.time, self.delay, self.delayed, self.calls = 0.0, 0.0, delayed, calls
        monkeypatch.setattr(patience, "now", lambda: self.time)
        monkeypatch.setattr(patience, "_delay", lambda pid: self.delay * (pid == 1))

    def comes(self, seconds: float) -> bool:
        """Let the time pass."""
        self.time += seconds
        self.delay += self.delayed * seconds
        self.calls -= 1
        return self.calls <= 0


def test_all_waits_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    some, clock = Patience(0.6), Clock(monkeypatch, delayed=0.0, calls=2)
    assert some.wait(clock.comes, 1)
    assert some.wait(clock.comes, 1)
    assert not some.wait(clock.comes, 1)


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Patience(0.6).wait(Clock(monkeypatch, delayed=1.0, calls=9).comes, 1)
    assert not Patience(0.6).wait(Clock(monkeypatch, delayed=0.5, calls=9).comes, 1)


def test_a_process_that_is_gone_has_no_delay() -> None:
    assert patience._delay(2**22 + 1) == 0
    assert patience._delay(os.getpid()) >= 0
