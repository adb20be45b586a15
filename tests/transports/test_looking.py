"""A rank that has a core of its own looks for a moment before it sleeps, because being woken takes long."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.transports.samples import world
from transports import shared_memory


class Sleep:
    """A poller in whose first sleep the peer sends."""

    def __init__(self, source: int, send: Callable[[], object]) -> None:
        self.times = 0
        self._source, self._send = source, send

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        self.times += 1
        self._send()
        return [(self._source, 1)]


def receive(ranks: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Let rank 1 send when rank 0 has looked twice, or when it sleeps; return how often it looked and slept."""
    looks: list[int] = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            ranks[1].isend("text", 0, "x")

    monkeypatch.setattr("os.sched_yield", look, raising=False)
    peer = ranks[0]._peers[1]
    poller, peer.poller = peer.poller, Sleep(peer.source, lambda: ranks[1].isend("text", 0, "x"))
    assert ranks[0].recv(1, "x").object == "text"
    sleep, peer.poller = peer.poller, poller
    return len(looks), sleep.times


@pytest.mark.parametrize(
    ("cores", "spin_s", "expected"), [(2, 60, (2, 0)), (2, 0, (0, 1)), (1, 60, (0, 1))], ids=["own", "long", "shared"]
)
def test_a_rank_looks_before_it_sleeps_if_it_has_a_core(
    cores: int, spin_s: float, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_SPIN_S", spin_s)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores), raising=False)
    with world(2) as ranks:
        assert receive(ranks, monkeypatch) == expected


def test_after_a_long_wait_a_rank_sleeps_at_once_until_a_wait_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(2), raising=False)
    with world(2) as ranks:
        monkeypatch.setattr(shared_memory, "_SPIN_S", 0)  # it sleeps
        monkeypatch.setattr(shared_memory, "_BRIEF_S", 0)  # every sleep is long
        assert receive(ranks, monkeypatch) == (0, 1)
        monkeypatch.setattr(shared_memory, "_SPIN_S", 60)
        monkeypatch.setattr(shared_memory, "_BRIEF_S", 60)  # every sleep is short
        assert receive(ranks, monkeypatch) == (0, 1)
        assert ranks[0].recv(1, "nothing", timeout=0) is None, "a poll looks once"
        assert receive(ranks, monkeypatch) == (2, 0)


def test_slices_that_come_again_are_made_once_and_are_not_kept_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transports.peer._SLICES", 2)
    with world(2) as ranks:
        vector = ranks[1].allocate(10)
        vector.copy_(vector.new_tensor(range(10)))
        for start in (0, 1, 0, 2, 3, 0):
            ranks[1].isend(vector[start : start + 4], 0, "x")
            with ranks[0].recv(1, "x") as message:
                assert message.vector.tolist() == list(range(start, start + 4))
            assert len(ranks[0]._peers[1]._slices) <= 2
