"""How long the judge waits: not for ever, and not for time in which nobody could have worked."""

import os
import time

import pytest

from lessons import patience
from lessons.patience import Patience


def never(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def at_once(seconds: float) -> bool:
    return True


def test_a_wait_ends_and_another_may_begin() -> None:
    some = Patience(silent_s=0.05, budget_s=1e6)
    assert not some.wait(never, [os.getpid()])
    assert not some.wait(at_once, [os.getpid()]), "this wait is over"
    some.begin()
    assert some.wait(at_once, [os.getpid()])


def test_all_waits_together_have_a_limit() -> None:
    some = Patience(silent_s=0.05, budget_s=0.2)
    waits = 0
    while some.wait(at_once, [os.getpid()]):
        assert not some.wait(never, [os.getpid()])
        some.begin()
        waits += 1
    assert waits >= 1


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter(range(0, 1_000_000, 1000))  # seconds: nobody has had a processor
    monkeypatch.setattr(patience, "_delay", lambda pid: float(next(delays)))
    calls = 0

    def late(seconds: float) -> bool:
        nonlocal calls
        calls += 1
        time.sleep(0.06)
        return calls == 5

    assert Patience(silent_s=0.05, budget_s=0.05).wait(late, [os.getpid()])


def test_a_process_that_is_gone_has_no_delay() -> None:
    assert patience._delay(2**22 + 1) == 0
    assert patience._delay(os.getpid()) >= 0
