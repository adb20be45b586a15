"""Hogwild++: the rule of an exchange, by hand and round the ring; the token; one cluster is Hogwild."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.core.transports.base import Transport
from strategies.lock_free.hogwild import Hogwild
from strategies.lock_free.hogwild_pp import HogwildPP, coefficients, exchange
from tests.ranks import run
from tests.strategies.loops import Rank, Task
from tests.strategies.test_hogwild import zeros

BETA, LAMBDA = (5**0.5 - 1) / 2, (3 - 5**0.5) / 2  # of two clusters


def vectors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


# The exchange


def test_the_exchange_has_the_values_computed_by_hand() -> None:
    x, u, following = vectors(10.0, 6.0, 2.0)  # d = 4
    added = exchange(x, u, following, beta=0.5, lam=0.25, tol=1.0)
    assert x.item() == 0.25 * 2 + 0.75 * 10 + (0.5 + 0.25 - 1) * 4 == 7.0
    assert following.item() == 2 + 0.5 * 4 == 4.0
    assert u.item() == 7.0
    assert [vector.item() for vector in added] == [-3.0, 2.0]


def test_what_has_moved_no_more_than_the_tolerance_waits_for_more() -> None:
    x, u, following = vectors(10.0, 6.0, 2.0)
    added = exchange(x, u, following, beta=0.5, lam=0.25, tol=4.0)
    assert x.item() == 0.25 * 2 + 0.75 * 10 + 0.25 * 4 == 9.0
    assert following.item() == 2.0
    assert u.item() == 9.0 - 4.0
    assert [vector.item() for vector in added] == [-1.0, 0.0]
    x.add_(1.0)
    exchange(x, u, following, beta=0.5, lam=0.25, tol=4.0)
    assert following.item() == 2 + 0.5 * 5, "with what has come since"


@given(st.integers(2, 6), st.lists(st.floats(-1e3, 1e3).filter(lambda d: abs(d) > 1e-3), min_size=1, max_size=5))
def test_an_impulse_that_has_gone_once_round_the_ring_has_come_back_whole(C: int, impulse: list[float]) -> None:
    beta, lam = coefficients(C)
    d = torch.tensor(impulse, dtype=torch.float64)
    xs, us = torch.zeros(C, len(d), dtype=torch.float64), torch.zeros(C, len(d), dtype=torch.float64)
    xs[0] = d
    for i in range(C):
        exchange(xs[i], us[i], xs[(i + 1) % C], beta, lam, tol=1e-6)
    torch.testing.assert_close(xs[0], d, rtol=1e-12, atol=0)


# Clusters and their token


def stepped(transport: Transport, strategy: Hogwild, order: list[int], gradient: float) -> list[dict[str, Any]]:
    """The ranks of `order` take a step, one after the other: what each left behind, and what the epoch ended with."""
    rank = Rank(transport, Task(strategy, transport.world_size, "unit"), zeros().double())
    taken, found = rank.strategy, list[dict[str, Any]]()
    assert isinstance(taken, Hogwild)
    for k in order:
        if k == transport.rank:
            rank.constant_step(gradient, 1)
        transport.barrier()
        token = int(taken.token) if isinstance(taken, HogwildPP) else 0
        xs = taken.xs if isinstance(taken, HogwildPP) else [taken.replica.x]
        found.append({"x": [x_i[0].item() for x_i in xs], "token": token})
        transport.barrier()
    taken.finish()
    model = taken.model().tolist()
    exchanges = transport.recorder.frame().query("phase == 'communicate' and op == ''")
    found.append({"model": model, "meters": dict(transport.recorder.meters), "communicated": len(exchanges)})
    rank.close()
    return found


def test_the_holder_exchanges_when_it_gets_the_token_and_passes_it_on_after_its_updates() -> None:
    # Each update adds 1. beta^2 + beta = 1, and beta + lambda = 1.
    strategy = HogwildPP(cluster_size=1, sync_delay=2)
    ranks = run("shared_memory", stepped, 2, strategy, [0, 0, 0, 1], -1.0, record=True)
    expected = [
        ([BETA, BETA], 0),  # d = 1 is exchanged
        ([BETA + 1, BETA], 0),
        ([BETA + 2, BETA], 1),  # two updates later
        ([BETA + 3, 2.0], 1),  # d = beta + 1 is exchanged
    ]
    for *steps, end in ranks:
        assert steps == [{"x": pytest.approx(x), "token": token} for x, token in expected]
        assert end["model"] == pytest.approx([(BETA + 5) / 2] * 6)
        assert end["communicated"] == 1
    assert ranks[0][-1]["meters"] == {"replica_distance": pytest.approx((BETA + 1) / (BETA + 5))}


def test_the_updates_of_all_its_ranks_count_before_a_cluster_passes_the_token() -> None:
    strategy = HogwildPP(cluster_size=2, sync_delay=3)
    ranks = run("shared_memory", stepped, 3, strategy, [0, 1, 1, 1, 0], -1.0, record=True)
    assert [found["token"] for found in ranks[0][:-1]] == [0, 0, 0, 0, 1], "the lowest rank passes it, when it looks"
    assert [rank[-1]["communicated"] for rank in ranks] == [1, 0, 0], "and it alone exchanges"


def test_one_cluster_is_hogwild_and_exchanges_nothing() -> None:
    order = [0, 1, 1, 0, 0, 1, 0, 1]
    kinds = (Hogwild(), HogwildPP(cluster_size=2, sync_delay=1))
    hogwild, one_cluster = (run("shared_memory", stepped, 2, kind, order, 0.3, record=True)[0] for kind in kinds)
    assert one_cluster[:-1] == hogwild[:-1], "bit for bit"
    assert one_cluster[-1]["model"] == hogwild[-1]["model"]
    assert one_cluster[-1]["communicated"] == 0
    assert one_cluster[-1]["meters"] == {"replica_distance": 0}


def resumed(transport: Transport) -> list[Any]:
    """All that is shared when rank 0 has saved a state, and when two ranks begin with it: xs, us, token, model."""
    task = Task(HogwildPP(cluster_size=1, sync_delay=2), 2, "unit")
    rank = Rank(transport, task, zeros().double())
    for k in (0, 0, 0, 1):
        if k == transport.rank:
            rank.constant_step(-1.0, 1)
        transport.barrier()
    rank.strategy.finish()
    state = rank.strategy.state_dict() if transport.rank == 0 else None
    again = Rank(transport, task, zeros().double(), state)
    found: list[Any] = []
    kept: Any
    for kept in (rank.strategy, again.strategy):
        found.append(
            [vector.tolist() for vector in (*kept.xs, *kept.us, kept.token, kept.model(), kept.counts.of_ranks)]
        )
    transport.barrier()
    return found


def test_a_state_of_rank_0_is_that_of_all_clusters() -> None:
    ranks = run("shared_memory", resumed, 2)
    for before, after in ranks:
        assert before == after == ranks[0][0]
    x_0, x_1, u_0, u_1, token, *_ = ranks[0][0]
    assert len({str(one) for one in (x_0, x_1, u_0, u_1)}) == 3, "u_1 is x_1 after its exchange"
    assert token == [1]
