"""A rank that has a core of its own looks for a moment before it sleeps, because being woken takes long."""

from typing import Any

import pytest

from tests.transports.samples import world
from transports import shared_memory


class Poller:
    """Something is ready when it is asked for the third time."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        self.limits.append(milliseconds)
        return [(5, 1)] if len(self.limits) == 3 or milliseconds else []


@pytest.mark.parametrize(
    ("cores", "spin_s", "limits"), [(2, 60, [0, 0, 0]), (2, 0, [1500]), (1, 60, [1500])], ids=["own", "long", "shared"]
)
def test_a_rank_looks_before_it_sleeps_if_it_has_a_core(
    cores: int, spin_s: float, limits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_SPIN_S", spin_s)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores), raising=False)
    poller: Any = Poller()
    with world(2) as ranks:
        assert ranks[0]._poll(poller, 1.5) == [(5, 1)]
        assert poller.limits == limits
        assert ranks[0]._poll(Poller(), 0) == [], "a poll looks once"


def test_after_a_long_wait_a_rank_sleeps_at_once_until_a_wait_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(2), raising=False)
    with world(2) as ranks:
        monkeypatch.setattr(shared_memory, "_SPIN_S", 0)  # every wait is long
        ranks[0]._poll(Poller(), 1.5)
        monkeypatch.setattr(shared_memory, "_SPIN_S", 60)  # every wait is short
        seen = [Poller(), Poller()]
        for poller in seen:
            ranks[0]._poll(poller, 1.5)
        assert [poller.limits for poller in seen] == [[1500], [0, 0, 0]]
