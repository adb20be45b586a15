"""Lab 11: the server that is given, in all orders, and training by the function."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire import run
from gradwire.every_order.explore import explore
from lessons.lab import Run, first
from lessons.labs import LABS
from lessons.labs.orders import APPLIED, decisions, explain
from lessons.orders import Mine
from lessons.solutions import orders
from tests.ranks import virtual_time
from tests.runs import metadata, small


def test_the_server_that_is_given_forgets_who_was_sent_what() -> None:
    wrong = []

    def forgets(run: Any) -> str | None:
        happened = run.ranks[0].strategy.happened
        wrong.append(bool(first(explain(happened, 0))))
        as_it_thinks = all(
            (what == APPLIED) == (read == now) for what, _, read, now in decisions(happened, latest=True)
        )
        return None if as_it_thinks else "it has another mistake"

    found = explore(Mine(), 3, 2, own_steps=True, invariant=forgets)
    assert found.held["forgets"] == (252, 252)
    assert found.held["no gradient is more than 0 versions stale"] == (252 - sum(wrong), 252)
    assert (sum(wrong), wrong[0]) == (52, False)
    assert found.counterexample is not None
    assert [peer for _, (_, peer, _) in found.counterexample.run.happened[:5]] == [2, 1, 1, 1, 2]


def test_an_invariant_without_versions_is_right() -> None:
    def holds(happened: list[tuple[str, int]], s: int) -> torch.Tensor:
        for i, (what, k) in enumerate(happened):
            if what != "sent":
                read = max(j for j in range(i) if happened[j] == ("sent", k))
                late = sum(what == "applied" for what, _ in happened[read:i])
                if (late > s) != (what == "dropped"):
                    return torch.tensor(False)
        return torch.tensor(True)

    lab, case = LABS["orders"], LABS["orders"].cases[0]
    found = lab.run(SimpleNamespace(holds=holds), None, case, {})
    assert not first(lab.find_faults(Run(case, [], results=[found])))


@pytest.mark.parametrize("s", [0, 30])
def test_training_drops_what_is_too_late(s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "serve_all", staticmethod(orders.serve))
    table = run(small(tmp_path, Mine(s=s), n_gpus=4), quiet=True, launcher=virtual_time(4).launcher())
    assert (table["dropped"].sum() > 0) == (s == 0)
    assert table["staleness_max"].max() <= s
    assert metadata(tmp_path)["replicas_identical"]
