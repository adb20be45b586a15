"""How a rank with shared memory waits: it looks for a moment, then it sleeps."""

import os
import time

import pytest

import gradwire.core.transports.shared_memory
from gradwire.core.transports.messages import WaitTimeout
from tests.core.transports.samples import pair


@pytest.mark.parametrize(("rest", "offers"), [(1e9, 1), (0, 2)])
def test_a_rank_that_comes_late_to_its_core_sleeps_for_some_time(
    monkeypatch: pytest.MonkeyPatch, rest: float, offers: int
) -> None:
    offered = 0

    def offer() -> None:
        nonlocal offered
        offered += 1
        time.sleep(1e-3)  # another one computes

    monkeypatch.setattr(os, "sched_yield", offer)
    monkeypatch.setattr(gradwire.core.transports.shared_memory, "_REST", rest)
    with pair() as (transport, _):
        for _ in range(2):
            transport._waited_briefly = True
            with pytest.raises(WaitTimeout):
                transport.recv(1, "x", timeout=0.01)
    assert offered == offers
