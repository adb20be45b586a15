"""Inconsistent reads: the versions at the start and the end of each, and which runs cannot have them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from records.files import load_events
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
from tests.ranks import LIMIT, launch
from tests.strategies.loops import Rank, Task
from tests.strategies.runs import applied, made
from transports.base import Transport

pytestmark = pytest.mark.xdist_group("inconsistent_reads")  # a run of the module is made once


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("run")
    made(folder, "run", InconsistentReads(), model="mlp", epochs=10, checkpoint_every=40)
    return load_events(folder / "run").assign(folder=str(folder))


def test_a_read_has_the_versions_at_its_start_and_end(events: pd.DataFrame) -> None:
    reads = events[events["op"] == "read"]
    updates = applied(Path(events["folder"].iloc[0]), "run")
    assert (reads["version_applied"] >= reads["version_read"]).all()
    assert (updates["staleness"] >= 0).all()
    assert updates["version_applied"].tolist() == list(range(len(updates)))
    for worker, own in reads.groupby("rank"):
        # Each but the first gradient of a worker counts from the start of the read before it.
        gradients = updates[updates["peer"] == worker]["version_read"].tolist()
        assert gradients[0] == 0
        assert gradients[1:] == own["version_read"].tolist()[: len(gradients) - 1]


def test_the_counts_continue_with_a_resumed_run(events: pd.DataFrame, tmp_path: Path) -> None:
    folder = Path(events["folder"].iloc[0])
    path = str(folder / "run.checkpoints")
    made(tmp_path, "resumed", InconsistentReads(), model="mlp", epochs=11, resume=path)
    updates = applied(tmp_path, "resumed")
    assert updates["version_applied"].min() == events.query("phase == 'update'")["step"].max() // 40 * 40
    assert (updates["staleness"] >= 0).all()
    assert updates["staleness"].max() < 20


def written(transport: Transport) -> list[tuple[int, int]]:
    """How many updates have begun and have ended, amid each."""
    rank = Rank(transport, Task(InconsistentReads(), 3))
    strategy, seen = rank.strategy, list[tuple[int, int]]()
    assert isinstance(strategy, InconsistentReads)
    step = strategy.descent.step

    def spied(*args: Any, **kwargs: Any) -> None:
        seen.append((int(strategy.begun), int(strategy.ended)))
        step(*args, **kwargs)

    strategy.descent.step = spied  # type: ignore[method-assign]
    rank.epoch(1)
    seen.append((int(strategy.begun), int(strategy.ended)))
    rank.close()
    return seen


def test_an_update_has_begun_and_not_ended_while_x_is_written() -> None:
    seen, *_ = launch(written, 3, timeout=LIMIT)
    n = len(seen) - 1
    assert n >= 8
    assert seen == [*((i + 1, i) for i in range(n)), (n, n)]
