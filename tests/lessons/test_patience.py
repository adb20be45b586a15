"""How long the judge waits: not for ever, and not for time in which nobody could have worked."""

import os
import time
from functools import partial

import pytest

from lessons import patience
from lessons.patience import Patience


def test_all_waits_together_have_a_limit() -> None:
    some = Patience(0.2)
    calls = 0

    def comes(seconds: float) -> bool:
        nonlocal calls
        calls += 1
        time.sleep(0.05)
        return calls < 3

    assert some.wait(comes, os.getpid())
    assert some.wait(comes, os.getpid())
    assert not some.wait(comes, os.getpid())
    assert not some.wait(lambda seconds: True, os.getpid())


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter(range(0, 1_000_000, 1000))  # seconds: nobody has had a processor
    monkeypatch.setattr(patience, "_delay", lambda pid: float(next(delays)))
    late = iter([False] * 4 + [True])
    wait = partial(time.sleep, 0.06)
    assert Patience(0.05).wait(lambda seconds: wait() or next(late), os.getpid())


def test_a_process_that_is_gone_has_no_delay() -> None:
    assert patience._delay(2**22 + 1) == 0
    assert patience._delay(os.getpid()) >= 0
