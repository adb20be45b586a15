"""A torch.distributed script in every order of its messages: how many there are, and what is found in them."""

from functools import partial
from math import factorial
from pathlib import Path
from typing import Any

import pytest

from gradwire.checking.orders import FITS, READ, SAME, WAITS
from gradwire.every_order import explore
from gradwire.torch_scripts.collectives import plans
from gradwire.torch_scripts.every_order import ScriptReport, examine, run_once
from gradwire.torch_scripts.script import Script, ranks_alone
from tests.every_order.planted import has_all_orders
from tests.runs import said_by
from tests.torch_scripts import SCRIPTS, at


def report(name: str, n: int, *arguments: Any, file: str = "orders.py", at_most: int = 20_000) -> ScriptReport:
    return examine(Script(str(SCRIPTS / file), [name, *map(str, arguments)]), n, at_most=at_most)


@pytest.mark.parametrize(("workers", "K"), [(1, 3), (2, 2), (3, 1)])
def test_receives_from_anybody_come_in_every_order(workers: int, K: int) -> None:
    expected = factorial(workers * K) // factorial(K) ** workers
    found = report("sources", workers + 1, K)
    assert (found.orders, len(found.results), found.complete) == (expected, expected, True)
    assert found.held == {WAITS: expected, FITS: expected, READ: expected, SAME: 1}
    total = report("sum", workers + 1, K)
    assert (total.orders, len(total.results), total.shortest) == (expected, 1, [])


@pytest.mark.parametrize(("name", "n", "K"), [
    ("sources", 3, 2), ("server", 3, 2), ("two choose", 4, 1), ("look at a sum", 2, 1), ("two receives", 3, 1),
])  # fmt: skip
def test_brute_force_finds_the_same_orders(name: str, n: int, K: int) -> None:
    script = Script(str(SCRIPTS / "orders.py"), [name, str(K)])
    with ranks_alone(script):
        assert has_all_orders(partial(run_once, script, n, 0, plans("ring")))


def test_an_asynchronous_server_has_the_orders_of_its_workers() -> None:
    found = report("server", 3, 2)
    assert (found.orders, found.complete) == (6, True)
    assert 2 <= len(found.results) <= 6
    assert found.shortest[0] == "an order with 1 departure from the plain order:"
    assert f"takes the message of rank 2 at {at('orders.py', 'source = dist.recv')}" in found.shortest[1]


@pytest.mark.parametrize(("name", "n", "orders", "results"), [
    ("train", 3, 1, 1),  # collectives and named receives have one order
    ("look", 2, 2, 2),  # it has ended, or not
    ("look again", 2, 2, 2),  # a look in vain is not repeated before anybody has called something
    ("two receives", 3, 2, 2),
    ("two at once", 2, 1, 1), ("a barrier between", 2, 1, 1),  # while a rank waits it receives from anybody
])  # fmt: skip
def test_only_looks_and_receives_from_anybody_branch(name: str, n: int, orders: int, results: int) -> None:
    found = report(name, n)
    assert (found.orders, len(found.results), found.held[WAITS]) == (orders, results, orders)
    assert (found.shortest == []) == (results == 1)


def test_messages_of_one_pair_stay_in_order_and_have_their_tags() -> None:
    found = report("of one pair", 2)
    assert (found.held[FITS], found.shortest) == (found.orders, [])
    assert found.orders == factorial(4) // factorial(2), "two of four have one tag"


def test_modules_beside_the_script_are_loaded_in_each_order(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("calls = []\n")
    text = (SCRIPTS / "orders.py").read_text()
    (tmp_path / "orders.py").write_text(
        text + "import beside_it\nbeside_it.calls.append(1)\nprint(len(beside_it.calls) < 4)\n"
    )
    found = examine(Script(str(tmp_path / "orders.py"), ["sum", "1"]), 3)
    assert (found.orders, len(found.results), found.shortest) == (2, 1, [])


def test_a_deadlock_that_only_some_orders_have_is_found() -> None:
    found = report("by name", 3)
    assert (found.orders, found.held[WAITS]) == (2, 1)
    assert f"rank 0 waits in recv of (1,) float32 from rank 1 at {at('orders.py', 'dist.recv(t, 1)')}" in found.broken
    assert "rank 2 waits in send" in found.broken


@pytest.mark.parametrize(("name", "says"), [
    ("other shape", FITS), ("other collective", FITS), ("raises", FITS), ("circle", WAITS), ("unread", READ),
])  # fmt: skip
def test_what_no_order_has_right_is_found_in_the_first(name: str, says: str) -> None:
    found = report(name, 2, file="mistakes.py")
    assert (found.orders, found.held[says], len(found.findings)) == (1, 0, 1)
    assert found.broken.startswith(f"{says}: ")
    assert "mistakes.py:" in found.broken


def test_the_command_says_not_all_where_it_was_cut() -> None:
    given = [f"--script={SCRIPTS / 'orders.py'}", "--n_gpus=3"]
    code, text = said_by(lambda: explore.main([*given, "--", "sum", "2"]))
    assert (code, "6 orders, all of them; 1 different result" in text) == (0, True), text
    code, text = said_by(lambda: explore.main([*given, "--at_most=4", "--", "sum", "2"]))
    assert (code, "4 orders, not all" in text) == (0, True), text
    code, text = said_by(lambda: explore.main([*given, "--", "server", "1"]))
    assert code == 1, text
    assert "not so: all orders have one result" in text
    line = at("orders.py", "source = dist.recv")
    found = text.partition("result depends on the order: it is another where rank 0 takes the message of rank 2 at ")[2]
    assert found.startswith(f"{line}\n    {line}  source = dist.recv"), text
    assert "    cure: name the rank to receive from" in found, text
    code, text = said_by(lambda: explore.main([*given, "--at_most=0"]))
    assert (code, "--at_most 0: must be from 1" in text) == (2, True), text
