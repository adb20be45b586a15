"""DeMo: with all coefficients it steps by the sign of the mean gradient."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from gradwire.compression import Layout, Setting
from gradwire.compression.of_strategies.demo import FastComponents
from gradwire.core.records.errors import RunFailed, UsageError
from strategies import DeMo
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import OPTIMIZERS, Rank, Task
from tests.strategies.test_every_plain_program import assert_plain

N, RATE = 3, 0.3  # of "plain"
SIZES = [35, 7, 21, 3]  # of the tensors of `make_model`


def test_clipped_its_steps_are_those_of_the_plain_program() -> None:
    assert_plain(DeMo, {"chunk_size": 8, "top_k": 2}, clip_norm=0.05)


def test_a_code_has_4_bytes_a_number_and_a_wrong_one_is_refused() -> None:
    end, layout = FastComponents(chunk_size=8, top_k=3), Layout(("a", "b", "c"), ((2, 9), (2,), (16,)))  # 6 chunks
    end.start(layout, torch.empty(0), Setting())
    g = torch.randn(36, generator=torch.Generator().manual_seed(0))
    code = end.encode(g)
    assert (code.values, code.indices) == end.count()[:2] == (16 * 4, 16 * 4)
    with pytest.raises(RunFailed, match="sent by another codec"):
        end.decode(code.data[:-4])
    with pytest.raises(RunFailed, match="not finite"):
        end.encode(g / 0)


@pytest.mark.parametrize(("optimizer", "message"), [
    (OPTIMIZERS["adam"], "--optimizer adam: demo takes steps of sgd; take sgd"),
    (OPTIMIZERS["soft"], "--momentum 0.5: demo has its own, --momentum_decay; leave it out"),
])  # fmt: skip
def test_another_optimizer_is_refused(optimizer: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        DeMo().check(replace(Task(DeMo(), N).size, optimizer=optimizer))


def test_rate_and_decay_are_those_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """x <- x - eta (sign + lambda x)."""
    groups = lambda ps: torch.optim.SGD([{"params": ps[:1], "weight_decay": 0.5}, {"params": ps[1:], "lr": 0.1}], 0.2)  # noqa: E731
    monkeypatch.setitem(OPTIMIZERS, "plain", groups)

    def step(rank: Rank) -> torch.Tensor:
        before = rank.x()
        rank.constant_step(2.0 - rank.transport.rank, 1)
        return torch.stack([before, rank.x()])

    for before, after in on_ranks(Task(DeMo(chunk_size=8, top_k=8), N, "plain"), step):
        first = torch.arange(len(before)) < SIZES[0]
        expected = torch.where(first, before - 0.2 * (1 + 0.5 * before), before - 0.1)
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-14)
