"""The asynchronous server: its bounds in clocks and in versions, and where it is the synchronous one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from records.errors import UsageError
from records.events import Recorder
from records.files import load_events
from strategies import STRATEGIES, RunSize
from strategies.async_param_server import AsyncParamServer
from strategies.descent import Descent
from strategies.downpour import Downpour
from strategies.inconsistent_reads import InconsistentReads
from strategies.param_server import ParamServer
from tests.strategies.runs import N_TRAIN, applied, made, server_rows

STRAGGLING: dict[str, Any] = {"slow": ("2:4",), "jitter": 1.0, "epochs": 6}
WORKERS = 3


@pytest.mark.parametrize("changes", [{}, {"clip_norm": 0.05, "optimizer": "adam"}], ids=["plain", "bounded adam"])
def test_in_lock_step_it_is_the_synchronous_server_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    same = {"momentum": 0.9, **changes}
    expected = made(tmp_path, "synchronous", ParamServer(), **same)["parameter_hash"]
    lock_step = AsyncParamServer(max_staleness=0, aggregate=WORKERS)
    assert made(tmp_path, "lock step", lock_step, **same)["parameter_hash"] == expected


def test_with_one_worker_it_is_the_synchronous_server_bit_for_bit(tmp_path: Path) -> None:
    one = {"n_gpus": 2, "global_batch_size": 48, "momentum": 0.9}
    expected = made(tmp_path, "synchronous", ParamServer(), **one)["parameter_hash"]
    assert made(tmp_path, "one", AsyncParamServer(), **one)["parameter_hash"] == expected


@pytest.mark.parametrize("other", [Downpour, InconsistentReads])
def test_with_one_worker_the_others_are_the_synchronous_server_too(tmp_path: Path, other: Any) -> None:
    assert other in STRATEGIES.values()
    same = {"n_gpus": 2, "dtype": "float64", "momentum": 0.9, "lr_schedule": "cosine"}
    expected = made(tmp_path, "synchronous", ParamServer(), **same)
    found = made(tmp_path, "run", other(), **same)
    for column in ("train_loss", "test_loss"):
        np.testing.assert_allclose(
            pd.read_csv(tmp_path / "run.csv")[column], pd.read_csv(tmp_path / "synchronous.csv")[column], rtol=1e-10
        )
    assert found["test_accuracy"] == expected["test_accuracy"]
    assert applied(tmp_path, "run")["staleness"].max() == 0


@pytest.mark.parametrize("s", [0, 1, 2])
def test_the_bound_holds_in_versions_and_in_clocks(tmp_path: Path, s: int) -> None:
    made(tmp_path, "run", AsyncParamServer(max_staleness=s), **STRAGGLING)
    updates = applied(tmp_path, "run")
    assert len(updates) > 6 * 10
    assert updates["version_applied"].tolist() == list(range(len(updates))), "one version an update"
    assert 0 <= updates["staleness"].min() <= updates["staleness"].max() <= (2 * s + 1) * (WORKERS - 1)

    events = load_events(tmp_path / "run").query("rank == 0 and epoch > 0").sort_values("t0", kind="stable")
    clocks, furthest = dict.fromkeys((1, 2, 3), 0), 0
    last = 0  # within an epoch: at its end all get x, wherever they are
    replies: list[int] = []
    for event in events.itertuples():
        if event.phase == "update" and event.version_read >= 0:
            if len(replies) < WORKERS:
                furthest = max([furthest, *replies])
            replies = []
            clocks[event.peer] += 1
            last += 1
        elif event.op == "send" and event.tag == "parameters":
            replies.append(clocks[event.peer] - min(clocks.values()))
    assert last == len(updates)
    assert furthest == s, "the bound is kept, and used"


def test_m_gradients_make_one_update_in_the_order_of_ranks(tmp_path: Path) -> None:
    made(tmp_path, "run", AsyncParamServer(aggregate=2), epochs=4, slow=("2:3",))
    updates = applied(tmp_path, "run")
    sizes = updates.groupby("version_applied").size()
    assert set(sizes) <= {1, 2}
    assert (sizes == 1).sum() <= 4, "only what is left at the end of an epoch"
    for _, peers in updates.groupby("version_applied")["peer"]:
        assert peers.tolist() == sorted(peers)


def test_an_update_of_an_epochs_gradients_ends_each_epoch(tmp_path: Path) -> None:
    made(tmp_path, "run", AsyncParamServer(aggregate=12), epochs=6)
    server = server_rows(tmp_path, "run")
    assert server["step"].diff().dropna().between(0, 2).all()
    assert server["samples"].sum() >= 6 * N_TRAIN


def test_an_epoch_ends_with_its_samples_whoever_gives_them(tmp_path: Path) -> None:
    made(tmp_path, "run", AsyncParamServer(), slow=("2:30",))
    table = pd.read_csv(tmp_path / "run.csv")
    server = server_rows(tmp_path, "run")
    goals = pd.Series([N_TRAIN, 2 * N_TRAIN, 3 * N_TRAIN], index=server.index)
    assert server["samples"].cumsum().between(goals, goals + WORKERS * 16).all()
    assert server["step"].tolist() == applied(tmp_path, "run").groupby("epoch").size().cumsum().tolist()
    assert table.groupby("rank")["samples"].sum()[[1, 2, 3]].sum() == server["samples"].sum(), "none is lost"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregate": 0}, "--aggregate 0: must be at least 1"),
        ({"aggregate": 13}, "--aggregate 13: must be at most 12, the gradients of an epoch"),
        ({"max_staleness": -1}, "--max_staleness -1: must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AsyncParamServer(**options).check(RunSize(4, 3, 4))
    AsyncParamServer(aggregate=12, max_staleness=0).check(RunSize(4, 3, 4))


def test_a_resumed_server_keeps_its_workers_within_the_bound() -> None:
    server = AsyncParamServer(max_staleness=2)
    vector = torch.zeros(2)
    server.replica = SimpleNamespace(x=vector, b=torch.zeros(0))  # type: ignore[assignment]
    server.transport = SimpleNamespace(rank=0, peers=[1, 2, 3])  # type: ignore[assignment]
    server.descent = Descent([vector], lambda p: torch.optim.SGD(p, lr=1), 0, None, Recorder())
    server.after_update = None
    server.setup()
    server.workers.steps = {1: 10, 2: 3, 3: 9}
    server.load_state_dict(server.state_dict())
    assert server.workers.steps == {1: 10, 2: 8, 3: 9}
