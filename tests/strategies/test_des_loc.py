"""DES-LOC: where it is Adam on the ring, and why not elsewhere."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from gradwire.core.records.errors import UsageError
from gradwire.core.training.optimizers import factory
from gradwire.virtual_time.dry_run import period
from strategies import DESLOC, by_name
from tests.strategies.kinds import start
from tests.strategies.loops import OPTIMIZERS, Task, trajectories

N, RATE, B1, B2, EPS = 3, 0.01, 0.9, 0.999, 1e-8


@pytest.mark.parametrize(
    ("strategy", "periods"),
    [(DESLOC(), (4, 12, 24)), (DESLOC(local_steps=3, first_period=2, second_period=5), (3, 2, 5))],
)
def test_after_so_many_steps_its_messages_repeat(strategy: DESLOC, periods: tuple[int, int, int]) -> None:
    assert all(period(strategy) % K == 0 for K in periods)


# Optimizers


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_groups_and_decay_are_the_optimizers(make: type[torch.optim.Adam], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors in two groups, which Adam then sees one by one, are updated as in one vector."""
    whole = partial(make, lr=RATE, weight_decay=0.1)
    grouped = lambda ps: whole([{"params": [p for p in ps if (p.dim() > 1) is of]} for of in (True, False)])  # noqa: E731
    found = []
    for optimizer in (whole, grouped):
        monkeypatch.setitem(OPTIMIZERS, "adam", optimizer)
        ranks = start(DESLOC, trajectories, N, [Task(DESLOC(local_steps=2), N, "adam")])
        found.append(torch.tensor(ranks, dtype=torch.float64))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("optimizer", "message"), [
    (OPTIMIZERS["plain"], "--optimizer sgd: des_loc averages the two moments of adam; take adam or adamw"),
    (torch.optim.NAdam, "--optimizer nadam: des_loc averages"),
    (factory("muon", RATE, B1, 0.0, ()), "--optimizer muon: des_loc averages"),
    (by_name(torch.optim.Adam, "mine"), "--optimizer mine: des_loc averages"),
    (partial(torch.optim.Adam, amsgrad=True), "--optimizer_options amsgrad=True: des_loc averages"),
])  # fmt: skip
def test_another_optimizer_is_refused(optimizer: partial[torch.optim.Optimizer], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        DESLOC().check(replace(Task(DESLOC(), N).size, optimizer=optimizer))
