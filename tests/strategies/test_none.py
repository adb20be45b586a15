"""No communication: every rank is one process on its own part; of the models, rank 0's is shown."""

from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from strategies.local_models.none import NoCommunication
from tests.ranks import virtual_time
from tests.strategies.loops import OPTIMIZERS, Rank, Task, X, Y, make_model
from tests.strategies.runs import made
from transports.base import Transport


def alone(transport: Transport, task: Task) -> tuple[list[float], list[float], list[float], int]:
    """The parameters of a rank, of plain torch on the same batches, and of `model()`; the messages sent."""
    plain = make_model()
    optimizer = OPTIMIZERS[task.optimizer](list(plain.parameters()))
    rank = Rank(transport, task)
    rank.strategy.descent.until = 47  # planned: nobody compares its steps
    sent = transport.messages_sent.total()
    for step in range(4):
        rank.take(step)
        part = rank.plan.part(1, step, transport.rank)
        F.cross_entropy(plain(X[part]), Y[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    rank.strategy.finish()
    sent = transport.messages_sent.total() - sent
    plain_x = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    found = rank.x().tolist(), plain_x.tolist(), rank.strategy.model().tolist(), sent
    rank.close()
    return found


def test_every_rank_is_one_process_on_its_own_part() -> None:
    ranks = virtual_time(3).launch(alone, 3, Task(NoCommunication(), 3))
    for x, plain_x, model, messages in ranks:
        assert x == pytest.approx(plain_x, rel=1e-12)
        assert messages == 0
        assert model == ranks[0][0]
    assert ranks[0][0] != ranks[1][0]


def test_the_record_says_that_the_models_differ(tmp_path: Path) -> None:
    entry = made(tmp_path, "run", NoCommunication(), real=True)
    assert entry["replicas_identical"] is False
    assert "the scores are of rank 0's parameters" in entry["remark"]
    assert pd.read_csv(tmp_path / "run.csv")["messages_sent"].sum() == 0
