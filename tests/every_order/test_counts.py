"""How many orders there are is a theorem: W workers on a server, or N ranks; K steps of each, or T gradients in all.

The page on scripts has these formulas. That no order is left out or run twice, brute force shows.
"""

from collections.abc import Callable
from functools import partial
from math import factorial, prod
from typing import Any

import pytest

from gradwire.every_order.explore import explore
from gradwire.every_order.report import Report, examine
from gradwire.every_order.runs import Case, run_once
from tests.every_order.planted import has_all_orders
from tests.every_order.planted_bugs import BUGS
from tests.runs import strategy_of

exhaustive = pytest.mark.exhaustive
ONE = ["ring_all_reduce", "sharded_ring", "all_gather", "demo", "naive_all_reduce", "gossip", "local_sgd", "des_loc",
       "noloco", "sparta", "none", "param_server", "sharded_param_server"]  # fmt: skip
IN_STEP = {"max_staleness": 0}  # with a gradient of each worker in an update


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


LARGER = [pytest.param(*of, marks=exhaustive) for of in ((2, 6, 1), (3, 2, 2))]


@pytest.mark.parametrize(("W", "T", "epochs"), [(2, 4, 1), (2, 1, 3), (3, 1, 2), *LARGER])
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


@pytest.mark.parametrize(
    ("name", "options", "own_steps", "orders", "has_one_result"),
    [
        # All interleavings of K gradients and a goodbye of each; the result depends on those of the gradients.
        ("async_param_server", {}, True, lambda W, K: interleavings(*[K + 1] * W), False),
        # The gradients of each step come in any order, and so do the goodbyes. The mean is one.
        ("backup_workers", {"n_backup": 0}, False, lambda W, K: factorial(W) ** (K + 1), True),
        ("async_param_server", IN_STEP, True, lambda W, K: factorial(W) ** (K + 1), True),
        # W! ways of the first step; (W + 1)! / 2 of each later one, whose late worker may come in any place; and so
        # many of a late gradient and the goodbyes.
        ("backup_workers", {}, False, lambda W, K: factorial(W) * (factorial(W + 1) // 2) ** K, False),
    ],
    ids=["interleaved", "all of a step", "in lock step", "a backup"],
)
@pytest.mark.parametrize(
    ("W", "K"), [(2, 2), (3, 1), *(pytest.param(*of, marks=exhaustive) for of in ((2, 3), (3, 2)))]
)
def test_a_server(
    name: str, options: dict[str, Any], own_steps: bool, orders: Callable[[int, int], int],
    has_one_result: bool, W: int, K: int,
) -> None:  # fmt: skip
    options = options | ({"aggregate": W} if options is IN_STEP else {})
    report = all_of(name, W + 1, K, options, own_steps=own_steps)
    assert report.orders == orders(W, K)
    assert (len(report.results) == 1) == has_one_result
    assert not own_steps or len(report.results) <= interleavings(*[K] * W)


@pytest.mark.parametrize("T", [1, 2, pytest.param(3, marks=exhaustive)])
def test_two_workers_that_push_and_fetch(T: int) -> None:
    assert all_of("downpour", 3, T).orders == (4**T if T > 1 else 6)
    assert all_of("easgd", 3, T, {"tau": 1}).orders == 4 ** (T + 1)


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


@pytest.mark.parametrize(("name", "n_gpus", "steps", "own_steps"), [
    ("async_param_server", 4, 2, False), ("overlapped_ring", 2, 1, False), ("hogwild", 2, 1, True),
    ("ad_psgd", 2, 1, True), pytest.param("async_param_server", 3, 2, True, marks=exhaustive),
    pytest.param("ad_psgd", 2, 2, True, marks=exhaustive), pytest.param("ad_psgd", 3, 1, True, marks=exhaustive),
])  # fmt: skip
def test_brute_force_finds_the_same_orders(name: str, n_gpus: int, steps: int, own_steps: bool) -> None:
    assert has_all_orders(partial(run_once, Case(strategy_of(name), n_gpus, steps, own_steps=own_steps)))
