"""The asynchronous server: its bound in versions, and where it is the synchronous one."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import AsyncParamServer, ParamServer
from tests.strategies.kinds import assert_same
from tests.strategies.loops import Task
from tests.strategies.scripted import Act, Scripted, epochs, staleness, start

WORKERS = 3


@pytest.mark.parametrize("how", [{"optimizer": "momentum"}, {"optimizer": "adam", "clip_norm": 0.05}], ids=str)
def test_in_lock_step_it_is_the_synchronous_server_bit_for_bit(how: dict[str, Any]) -> None:
    lock_step = AsyncParamServer(max_staleness=0, aggregate=WORKERS)
    assert_same(Task(lock_step, 4, **how), Task(ParamServer(), 4, **how))


def test_at_the_start_of_an_epoch_nobody_is_further_behind_than_the_bound() -> None:
    transport = Scripted(3)
    server = AsyncParamServer(max_staleness=2)
    start(server, transport)
    server.load_state_dict(server.state_dict() | {"worker_steps": {1: 10, 2: 3, 3: 9}})
    list(epochs(server, transport, 1))
    assert server.workers.steps == {1: 11, 2: 9, 3: 10}


# Whoever dies and returns, when: scripted


class Clocks(Scripted):
    """Checks each x that the server gives: the clocks, which never fall, and the pushes of others until the next push.

    `others[k][j]`: the gradients that j, in all its lives, has sent since k got its x.
    """

    server: AsyncParamServer

    def __init__(self, workers: int, s: int, acts: Iterable[Act]) -> None:
        super().__init__(workers, acts)
        self.s = s
        self.before = dict.fromkeys(self.peers, 0)
        self.others = {k: dict.fromkeys(self.peers, 0) for k in self.peers}

    def request(self, k: int) -> None:
        super().request(k)
        assert max(self.others[k].values()) <= 2 * self.s + 1
        for j in self.computing:
            self.others[j][k] += 1

    def hear(self, k: int, tag: str, n: int) -> None:
        super().hear(k, tag, n)
        if k not in self.computing:
            return
        self.others[k] = dict.fromkeys(self.peers, 0)
        clocks = self.server.workers.steps
        assert all(clocks[j] >= self.before[j] for j in self.peers), "a clock never falls"
        self.before = dict(clocks)
        if (tag == "parameters" and n < self.until) or (tag == "initial buffers" and self.server.workers.present):
            assert clocks[k] - self.server.workers.slowest <= self.s, "x is given within the bound only"


def serve_scripted(s: int, workers: int, acts: Iterable[Act], samples: int, n: int = 1, aggregate: int = 1) -> Clocks:
    """Serve `n` epochs of so many samples and check the bound in versions; return what else is known."""
    transport = Clocks(workers, s, acts)
    transport.server = server = AsyncParamServer(max_staleness=s, aggregate=aggregate)
    start(server, transport)
    assert list(epochs(server, transport, samples, n)) == list(range(1, n + 1))
    late = [versions for _, versions in staleness(transport)]
    assert len(late) >= n * samples
    assert max(late) <= (2 * s + 1) * (workers - 1)
    return transport


def again(k: int) -> list[Act]:
    return [("push", k), ("die", k), ("return", k)]


def test_one_that_died_ahead_begins_when_the_slowest_has_caught_up() -> None:
    acts: list[Act] = [*again(1), ("push", 1), ("push", 1), ("push", 2), ("push", 1), ("push", 2)]
    transport = serve_scripted(0, 3, [*acts, ("push", 3), ("push", 1)], samples=6)
    assert [k for k, _ in staleness(transport)][:4] == [1, 2, 3, 1]


def test_one_that_asks_too_late_for_an_epoch_begins_in_the_next() -> None:
    transport = serve_scripted(0, 2, [("push", 1), ("push", 2), *again(1)], samples=3, n=2)
    assert transport.recorder.deaths == [{"rank": 1, "samples": 3, "step": 4, "returned": True}]
    assert [k for k, _ in staleness(transport)] == [1, 2, 1, 2, 1, 2]
    assert transport.positions[-1] == (1, (2, 4, 2)), "epoch, samples, steps"


ACTS = st.tuples(st.sampled_from(["push", "push", "push", "die", "return", "return"]), st.integers(1, 3))


@settings(max_examples=100)
@given(st.integers(0, 2), st.integers(1, 3), st.lists(ACTS, max_size=80), st.integers(3, 15), st.integers(1, 3))
def test_the_bound_holds_whoever_dies_and_returns(
    s: int, workers: int, acts: list[Act], samples: int, aggregate: int
) -> None:
    possible = [(what, k) for what, k in acts if k <= workers]
    serve_scripted(s, workers, possible, samples, n=3, aggregate=aggregate)
