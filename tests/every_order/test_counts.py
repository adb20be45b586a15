"""How many orders there are is a theorem: W workers on a server, or N ranks; K steps of each, or T gradients in all."""

from functools import partial
from math import comb, factorial, prod
from random import Random
from typing import Any

import pytest

from gradwire.every_order.explore import explore
from gradwire.every_order.report import Report, examine
from gradwire.every_order.runs import Case, run_once
from tests.every_order.planted import has_all_orders
from tests.every_order.planted_bugs import BUGS
from tests.runs import strategy_of

exhaustive = pytest.mark.exhaustive
SMALL = pytest.mark.parametrize(
    ("W", "K"), [(2, 2), (3, 1), *(pytest.param(*of, marks=exhaustive) for of in ((2, 3), (3, 2)))]
)
THREE = pytest.mark.parametrize("T", [1, 2, pytest.param(3, marks=exhaustive)])
ONE = ["ring_all_reduce", "sharded_ring", "all_gather", "demo", "naive_all_reduce", "gossip", "local_sgd", "des_loc",
       "noloco", "sparta", "none", "param_server", "sharded_param_server"]  # fmt: skip


def all_of(name: str, n_gpus: int, steps: int, options: dict[str, Any] | None = None, **how: Any) -> Report:
    report = explore(strategy_of(name, **options or {}), n_gpus, steps, **how)
    assert report.complete
    assert report.counterexample is None, report.text()
    assert set(report.held.values()) == {(report.orders, report.orders)}
    return report


def interleavings(*lengths: int) -> int:
    return factorial(sum(lengths)) // prod(map(factorial, lengths))


@pytest.mark.parametrize("name", ONE)
def test_without_a_receive_from_anybody_there_is_one_order(name: str) -> None:
    report = all_of(name, 3 + strategy_of(name).roles(8).count("server"), 2 * strategy_of(name).period)
    assert (report.orders, len(report.results)) == (1, 1)


@pytest.mark.parametrize(("W", "T", "epochs"), [(2, 6, 1), (2, 1, 3), (3, 2, 2)])
@pytest.mark.parametrize("name", ["async_param_server", pytest.param("dgs", marks=exhaustive)])
def test_an_asynchronous_server_that_ends_epochs(name: str, W: int, T: int, epochs: int) -> None:
    """W^T (W - 1)! orders of an epoch, W^max(1, T - W + 1) (W - 1)! of each later one.

    One gradient of each worker is on its way at any time, for the server replies at once: W choices, T times. Then it
    replies no more, and takes the W - 1 other gradients in any order. With these W - 1 the next epoch has begun: T - W
    + 1 choices end it, but not before its first.
    """
    n = set()
    report = all_of(name, W + 1, T, epochs=epochs, invariant=lambda run: n.add(len(run.applied)))
    assert report.orders == factorial(W - 1) ** epochs * W ** (T + max(1, T - W + 1) * (epochs - 1))
    assert n == {T + W - 1 + max(T, W) * (epochs - 1)}


@SMALL
def test_an_asynchronous_server_whose_workers_end(W: int, K: int) -> None:
    """(W (K + 1))! / ((K + 1)!)^W orders, at most (W K)! / (K!)^W results.

    Each worker sends K gradients and a goodbye, the next of which is on its way at any time: all interleavings. The
    result depends on that of the gradients.
    """
    report = all_of("async_param_server", W + 1, K, own_steps=True)
    assert report.orders == interleavings(*[K + 1] * W)
    assert 1 < len(report.results) <= interleavings(*[K] * W)


@SMALL
def test_a_synchronous_server_that_takes_anybody(W: int, K: int) -> None:
    """(W!)^(K + 1) orders: the gradients of each step come in any order, and so do the goodbyes. The mean is one."""
    for report in (
        all_of("backup_workers", W + 1, K, {"n_backup": 0}),
        all_of("async_param_server", W + 1, K, {"max_staleness": 0, "aggregate": W}, own_steps=True),
    ):
        assert (report.orders, len(report.results)) == (factorial(W) ** (K + 1), 1)


@SMALL
def test_one_backup_worker(W: int, K: int) -> None:
    """W! ((W + 1)! / 2)^K orders.

    The first step takes W - 1 of W gradients: W! ways, and one worker is late. Each later step takes W - 1 gradients of
    its own. If the late one does not come, these are of the others: (W - 1)! ways. If it comes after i of them, that is
    (W - 1)! / (W - 1 - i)! ways; its worker is answered, so W - 1 - i more are taken of W - i: (W - i)! ways. The
    product is (W - 1)! (W - i). The sum, over i = 0 to W - 2 and the first case, is (W - 1)! W (W + 1) / 2; one is late
    again. At the end come W - 1 goodbyes, and a late gradient and a goodbye in this order: (W + 1)! / 2 once more.
    """
    report = all_of("backup_workers", W + 1, K)
    assert report.orders == factorial(W) * (factorial(W + 1) // 2) ** K


@THREE
def test_downpour(T: int) -> None:
    """4^T orders of 2 workers, but 6 if T = 1.

    Each sends push, fetch, push, ... and is answered at once until T pushes were added. Let the last of these be the
    T - j'th of its worker, which has then sent 2 (T - j) - 1 messages, and the other 2 j, or 2 j - 1 (its fetch is to
    come): comb(2 T - 2, 2 j) or comb(2 T - 3, 2 j - 1) ways. What is left are a fetch, and the other's push and fetch
    (3 ways), or fetch (2). Even and odd binomials have the same sums: 2 (3 2^(2 T - 3) + 2 2^(2 T - 4)) = 4^T.
    """
    ways = sum(3 * comb(2 * T - 2, 2 * j) + (2 * comb(2 * T - 3, 2 * j - 1) if j else 0) for j in range(T))
    assert all_of("downpour", 3, T).orders == 2 * ways == (4**T if T > 1 else 6)


@THREE
def test_easgd(T: int) -> None:
    """4^(T + 1) orders of 2 workers: as `test_downpour`, but each sends fetch, push, fetch, ...

    At the last push one has sent 2 (T - j) messages, the other 2 j (1 is left), or 2 j + 1 (2 are). The sums are
    2 (2 2^(2 T - 2) + 3 2^(2 T - 1)).
    """
    ways = sum(2 * comb(2 * T - 1, 2 * j) + 3 * comb(2 * T, 2 * j + 1) for j in range(T))
    assert all_of("easgd", 3, T, {"tau": 1}).orders == 2 * ways == 4 ** (T + 1)


@pytest.mark.parametrize(("N", "K"), [(2, 1), (2, 2), (3, 1)])
def test_the_overlapped_ring(N: int, K: int) -> None:
    """(2 N - 1)^(N K) orders.

    Of the 2 (N - 1) messages of a step a rank finds the first 0 to 2 (N - 1) in its backward pass. All such choices go
    together: its neighbour sends message s when it has message s - 1, wherever it found that.
    """
    report = all_of("overlapped_ring", N, K)
    assert (report.orders, len(report.results)) == ((2 * N - 1) ** (N * K), 1)


@pytest.mark.parametrize(("N", "K"), [(2, 1), (2, 2), (3, 1), pytest.param(2, 3, marks=exhaustive)])
def test_hogwild_loses_no_update_that_is_one_step(N: int, K: int) -> None:
    """(2 N K)! / ((2 K)!)^N orders: K times a rank reads x, and updates x."""
    assert all_of("hogwild", N, K, own_steps=True).orders == interleavings(*[2 * K] * N)


def test_hogwild_loses_updates_that_are_a_load_and_a_store() -> None:
    """(3 N K)! / ((3 K)!)^N orders. None is lost if one stores before the other loads, which may read before: 2 x 4."""
    report = examine(BUGS["updates are loads and stores"][0])
    assert report.orders == interleavings(3, 3) == 20
    assert [held for held in report.held.values() if held != (20, 20)] == [(8, 20)]


@pytest.mark.parametrize("N", [2, *(pytest.param(N, marks=exhaustive) for N in (3, 4))])
def test_ad_psgd_with_one_step(N: int) -> None:
    """16/25 R(N - 1) R(m_1) R(m_3) ... orders, R(m) = 5 6 ... (m + 4), if m_j active ranks draw the passive rank j.

    Rank 0 takes the progress of all, j the requests of m_j, each at one of 4 looks or at the end; those at the same
    place in any order: R ways. 3 of the looks are before it sends its own. Of the ways in which rank 0 finds j's
    progress (3/5) and j finds rank 0's request (3/5) at one of these, none is possible, for neither was sent first.
    """
    partners = {k: [j for j in sorted({(k - 1) % N, (k + 1) % N}) if j % 2] for k in range(0, N, 2)}
    drawn = [Random(f"0 {k}").choice(partners[k]) for k in partners]  # of seed 0
    ways = prod(prod(range(5, 5 + m)) for m in (N - 1, *(drawn.count(j) for j in range(1, N, 2))))
    assert all_of("ad_psgd", N, 1, own_steps=True).orders == ways * 16 // 25


@exhaustive
def test_ad_psgd_with_two_steps() -> None:
    """No formula: as in one step, but what was sent before an answer is found by the next look after that."""
    assert all_of("ad_psgd", 2, 2, own_steps=True).orders == 531


@pytest.mark.parametrize(("name", "n_gpus", "steps", "own_steps"), [
    ("async_param_server", 4, 2, False), ("overlapped_ring", 2, 1, False), ("hogwild", 2, 1, True),
    ("ad_psgd", 2, 1, True), pytest.param("async_param_server", 3, 2, True, marks=exhaustive),
    pytest.param("ad_psgd", 2, 2, True, marks=exhaustive), pytest.param("ad_psgd", 3, 1, True, marks=exhaustive),
])  # fmt: skip
def test_brute_force_finds_the_same_orders(name: str, n_gpus: int, steps: int, own_steps: bool) -> None:
    assert has_all_orders(partial(run_once, Case(strategy_of(name), n_gpus, steps, own_steps=own_steps)))
