"""How many orders a case has is a theorem for each strategy. Each test derives its formula, and counts.

An order is each rank's sequence of choices. W workers on a server, or N ranks; K steps of each, or T gradients in all.
"""

from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import combinations_with_replacement, pairwise
from math import comb, factorial, prod
from random import Random
from typing import Any

import pytest

from every_order.report import Report, examine
from every_order.runs import LR, Run
from every_order.search import Orders
from explore import explore, make_case
from tests.every_order.planted import InTwoSteps, LoadsAndStores, by_brute_force, order_of
from tests.runs import strategy_of

exhaustive = pytest.mark.exhaustive


def all_of(name: str, n_gpus: int, steps: int, options: dict[str, Any] | None = None, **how: Any) -> Report:
    """All orders, in each of which everything holds."""
    report = explore(strategy_of(name, **options or {}), n_gpus, steps, **how)
    assert report.complete
    assert report.counterexample is None, report.text()
    assert set(report.held.values()) == {(report.orders, report.orders)}
    return report


def interleavings(*lengths: int) -> int:
    """In how many ways sequences become one."""
    return factorial(sum(lengths)) // prod(map(factorial, lengths))


ONE = ["ring_all_reduce", "sharded_ring", "all_gather", "naive_all_reduce", "gossip", "local_sgd", "sparta", "none",
       "param_server", "sharded_param_server"]  # fmt: skip


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("workers", [2, 3])
def test_no_receive_from_anybody_and_no_look_is_one_order(name: str, workers: int) -> None:
    n_gpus = workers + strategy_of(name).roles(8).count("server")
    report = all_of(name, n_gpus, 3)
    assert (report.orders, len(report.results)) == (1, 1)


@pytest.mark.parametrize(
    ("W", "T", "epochs"), [(2, 1, 1), (2, 6, 1), (3, 3, 1), (2, 1, 3), (2, 2, 3), (3, 2, 2), (4, 1, 1)]
)
def test_an_asynchronous_server_that_ends_epochs(W: int, T: int, epochs: int) -> None:
    """W^T (W - 1)! orders of an epoch, W^max(1, T - W + 1) (W - 1)! of each later one; T + W - 1 gradients are applied.

    Each worker has one gradient on its way at any time, for the server replies at once: W choices, T times. Then it
    replies no more, and takes the W - 1 other gradients in any order. So W - 1 more than T are applied, which the next
    epoch counts: it ends after T - W + 1, but not before the first.
    """
    applied = []
    report = all_of(
        "async_param_server", W + 1, T, epochs=epochs, invariant=lambda run: applied.append(len(run.applied))
    )
    assert report.orders == factorial(W - 1) ** epochs * W**T * W ** (max(1, T - W + 1) * (epochs - 1))
    assert set(applied) == {T + W - 1 + max(T, W) * (epochs - 1)}
    assert len(report.results) <= report.orders


@pytest.mark.parametrize(("W", "K"), [(2, 1), (2, 2), (2, 3), (3, 1), pytest.param(3, 2, marks=exhaustive)])
def test_an_asynchronous_server_whose_workers_end(W: int, K: int) -> None:
    """(W (K + 1))! / ((K + 1)!)^W orders, at most (W K)! / (K!)^W results.

    Each worker sends K gradients and a goodbye, and the next of these is on its way at any time: all interleavings. A
    goodbye changes no x, so the result depends on the order of the gradients alone.
    """
    report = all_of("async_param_server", W + 1, K, own_steps=True)
    assert report.orders == interleavings(*[K + 1] * W)
    assert 1 < len(report.results) <= interleavings(*[K] * W)


@pytest.mark.parametrize(("W", "K"), [(2, 1), (2, 2), (2, 3), (3, 1), pytest.param(3, 2, marks=exhaustive)])
def test_a_synchronous_server_that_takes_anybody(W: int, K: int) -> None:
    """(W!)^(K + 1) orders: the gradients of each step in any order, and then the goodbyes. One result: a mean."""
    all_aggregated = {"max_staleness": 0, "aggregate": W}
    for report in (
        all_of("backup_workers", W + 1, K, {"n_backup": 0}),
        all_of("async_param_server", W + 1, K, all_aggregated, own_steps=True),
    ):
        assert (report.orders, len(report.results)) == (factorial(W) ** (K + 1), 1)


@pytest.mark.parametrize(("W", "K"), [(2, 1), (2, 2), (2, 3), (3, 1), pytest.param(3, 2, marks=exhaustive)])
def test_one_backup_worker(W: int, K: int) -> None:
    """W! ((W + 1)! / 2)^K orders.

    The first step takes W - 1 of W gradients: W! ways, and leaves one worker late. Each later step begins with W - 1
    new gradients and a late one, and takes W - 1 new ones. Without the late one, (W - 1)! ways. If that comes after i
    of them, (W - 1)! / (W - 1 - i)! ways until then; its worker is answered, so W - i new ones are there, of which
    W - 1 - i are taken: (W - i)! ways. The product is (W - 1)! (W - i), and with i = 0 to W - 2 and the first case the
    sum is (W - 1)! W (W + 1) / 2 = (W + 1)! / 2. Again one is late. After K steps come W - 1 goodbyes, and a late
    gradient before the last goodbye: (W + 1)! / 2 interleavings once more.
    """
    report = all_of("backup_workers", W + 1, K)
    assert report.orders == factorial(W) * (factorial(W + 1) // 2) ** K
    assert len(report.results) > 1


@pytest.mark.parametrize("T", [1, 2, 3])
def test_downpour(T: int) -> None:
    """4^T orders of 2 workers; 6 where T = 1.

    Each sends push, fetch, push, ...; a fetch is answered at once, until T pushes were added. Let the last of these be
    the worker's that has pushed T - j times, which has sent 2 (T - j) - 1 messages, the other 2 j (a push and a fetch
    are to come), or 2 j - 1 (a fetch is). The last is fixed, so comb(2 T - 2, 2 j) or comb(2 T - 3, 2 j - 1)
    interleavings; then this worker's fetch comes among two messages (3 ways), or one (2 ways). What is left is pushed
    in the order of ranks. For T >= 2 the sums over even and odd numbers are 2 (3 2^(2 T - 3) + 2 2^(2 T - 4)) = 4^T.
    """
    ways = sum(3 * comb(2 * T - 2, 2 * j) + (2 * comb(2 * T - 3, 2 * j - 1) if j else 0) for j in range(T))
    assert 2 * ways == (4**T if T > 1 else 6)
    assert all_of("downpour", 3, T).orders == 2 * ways


@pytest.mark.parametrize("T", [1, 2, 3])
def test_easgd(T: int) -> None:
    """4^(T + 1) orders of 2 workers.

    As `test_downpour`, but each sends fetch, push, fetch, ... So until the last push the one has sent 2 (T - j), the
    other 2 j (a fetch is to come), or 2 j + 1 (a push and a fetch are): 2 (2 2^(2 T - 2) + 3 2^(2 T - 1)) = 4^(T + 1).
    """
    ways = sum(2 * comb(2 * T - 1, 2 * j) + 3 * comb(2 * T, 2 * j + 1) for j in range(T))
    assert 2 * ways == 4 ** (T + 1)
    assert all_of("easgd", 3, T, {"tau": 1}).orders == 2 * ways


def test_dgs() -> None:
    """As any asynchronous server: 3^3 2! = 54 orders. Only the largest elements travel, so many results are the same."""
    report = all_of("dgs", 4, 3)
    assert report.orders == 54
    assert 1 < len(report.results) < 54


@pytest.mark.parametrize(("N", "K"), [(2, 1), (2, 2), (3, 1)])
def test_the_overlapped_ring(N: int, K: int) -> None:
    """(2 N - 1)^(N K) orders, one result.

    In each step a rank takes 2 (N - 1) messages of its left neighbour, the first 0 to 2 (N - 1) of them in its backward
    pass: 2 N - 1 choices. All go together: a neighbour sends message s when it has message s - 1, no matter where.
    """
    report = all_of("overlapped_ring", N, K)
    assert (report.orders, len(report.results)) == ((2 * N - 1) ** (N * K), 1)


@pytest.mark.parametrize(("N", "K"), [(2, 1), (2, 2), (3, 1), pytest.param(2, 3, marks=exhaustive)])
def test_hogwild(N: int, K: int) -> None:
    """(2 N K)! / ((2 K)!)^N orders: each rank reads x and updates x, K times. No update is lost: each is one access."""
    report = all_of("hogwild", N, K, own_steps=True)
    assert report.orders == interleavings(*[2 * K] * N)
    assert len(report.results) > 1


def test_hogwild_whose_update_is_a_load_and_a_store() -> None:
    """(3 N K)! / ((3 K)!)^N orders. Of two ranks with one step none is lost in 8 of 20.

    For then one stores before the other loads, and the read of the other is at any of 4 places before its load; twice.
    """
    case = make_case(LoadsAndStores(), 2, 1, own_steps=True)
    report = examine(replace(case, optimizer=partial(InTwoSteps, lr=LR)))
    assert report.orders == interleavings(3, 3) == 20
    assert {says: held for says, held in report.held.items() if held != (20, 20)} == {
        "the model has every gradient once, with weight 1": (8, 20)
    }


# AD-PSGD: several ranks choose


def found_at(places: int, messages: int) -> int:
    """In how many ways messages are found, each at a place; those at the same place in any order."""
    return prod(range(places, places + messages))


@pytest.mark.parametrize("N", [2, 3, pytest.param(4, marks=exhaustive)])
def test_ad_psgd_of_one_step(N: int) -> None:
    """16 / 25 R(N - 1) R(m_1) R(m_3) ... orders, R(m) = 5 6 ... (m + 4), if m_j active ranks draw the passive rank j.

    Rank 0 takes the progress of the N - 1 others, rank j the requests of m_j, each at one of 4 looks, 3 of them before
    it sends its own, or at the end: R ways. All go together but where rank 0 finds j's progress before it sends j its
    request, and j finds that before it sends its progress: 3/5 of the ways of each.
    """
    partners = {k: [j for j in sorted({(k - 1) % N, (k + 1) % N}) if j % 2] for k in range(0, N, 2)}
    drawn = [Random(f"0 {k}").choice(partners[k]) for k in partners]  # with seed 0
    ways = found_at(5, N - 1) * prod(found_at(5, drawn.count(j)) for j in range(1, N, 2))
    report = all_of("ad_psgd", N, 1, own_steps=True)
    assert report.orders == ways * 16 // 25


def has_no_circle(progress: tuple[int, ...], requests: tuple[int, ...], K: int) -> bool:
    """Whether two ranks of AD-PSGD can find the K messages of the other at these places: looks 0 to 3 K, or the end."""
    lines = []
    for is_active, places in ((True, progress), (False, requests)):
        line: list[tuple[Any, ...]] = []
        for place in range(3 * K + 2):
            if place == 3 * K + 1:
                line += [("answer", K - 1), ("all sent",)] if is_active else [("done",)]
            line += [("take", is_active, m) for m in range(K) if places[m] == place] + [("look", is_active, place)]
            if place <= 3 * K and place % 3 == 2:
                line += [("answer", place // 3 - 1)] * (is_active and place > 2) + [("send", is_active, place // 3)]
        lines.append(line)
    active, passive = lines
    before = [*pairwise(active), *pairwise(passive), (("done",), ("all sent",))]
    for m in range(K):
        before += [(("send", one, m), ("take", not one, m)) for one in (True, False)]
        before.append((("take", False, m), ("answer", m)))
        # What was sent before an answer is there when that has come, and the next look finds it.
        next_look = next(i for i in range(active.index(("answer", m)), len(active)) if active[i][0] == "look")
        sent = [s for s in range(K) if passive.index(("send", False, s)) < passive.index(("take", False, m))]
        if any(active.index(("take", True, s)) > next_look for s in sent):
            return False
    graph = TopologicalSorter[Any]()
    for first, then in before:
        graph.add(then, first)
    try:
        graph.prepare()
    except CycleError:
        return False
    return True


@pytest.mark.parametrize("K", [1, 2])
def test_ad_psgd_of_several_steps(K: int) -> None:
    """16 and 531 orders of 2 ranks: the ways to find the messages in which nothing comes before itself."""
    ways = list(combinations_with_replacement(range(3 * K + 2), K))
    possible = sum(has_no_circle(progress, requests, K) for progress in ways for requests in ways)
    assert possible == {1: 16, 2: 531}[K]
    assert all_of("ad_psgd", 2, K, own_steps=True).orders == possible


@pytest.mark.parametrize(
    ("name", "n_gpus", "steps", "own_steps", "merged"),
    [
        ("async_param_server", 3, 2, True, False),
        ("async_param_server", 4, 2, False, False),
        ("overlapped_ring", 2, 1, False, False),
        ("hogwild", 2, 1, True, False),
        ("ad_psgd", 2, 1, True, True),
        pytest.param("ad_psgd", 2, 1, True, False, marks=exhaustive),
        pytest.param("ad_psgd", 2, 2, True, True, marks=exhaustive),
        pytest.param("ad_psgd", 3, 1, True, True, marks=exhaustive),
    ],
)
def test_brute_force_finds_the_same_orders(name: str, n_gpus: int, steps: int, own_steps: bool, merged: bool) -> None:
    case = make_case(strategy_of(name), n_gpus, steps, own_steps=own_steps)

    def found(runs: Any) -> list[object]:
        return [order_of(run.happened) for run in runs]

    once = found(Orders(case, 20_000))
    assert len(set(once)) == len(once)
    assert set(once) == set(found(by_brute_force(case, merged)))
