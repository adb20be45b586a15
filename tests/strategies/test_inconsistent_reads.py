"""Inconsistent reads: the versions at the start and the end of each, and which runs cannot have them."""

from pathlib import Path
from typing import Any

from gradwire.results import load_events
from strategies.asynchronous_server.inconsistent_reads import InconsistentReads
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import Rank, Task
from tests.strategies.runs import applied, made


def test_a_read_has_the_versions_at_its_start_and_end(tmp_path: Path) -> None:
    made(tmp_path, "run", InconsistentReads(), model="mlp", epochs=10)
    events, updates = load_events(tmp_path / "run"), applied(tmp_path, "run")
    reads = events[events["op"] == "read"]
    assert (reads["version_applied"] >= reads["version_read"]).all()
    assert (updates["staleness"] >= 0).all()
    assert updates["version_applied"].tolist() == list(range(len(updates)))
    for worker, own in reads.groupby("rank"):
        # Each but the first gradient of a worker counts from the start of the read before it.
        gradients = updates[updates["peer"] == worker]["version_read"].tolist()
        assert gradients[0] == 0
        assert gradients[1:] == own["version_read"].tolist()[: len(gradients) - 1]


def written(rank: Rank) -> list[tuple[int, int]]:
    """How many updates have begun and have ended, amid each."""
    strategy, seen = rank.strategy, list[tuple[int, int]]()
    assert isinstance(strategy, InconsistentReads)
    step = strategy.updater.step

    def spied(*args: Any, **kwargs: Any) -> None:
        seen.append((int(strategy.begun), int(strategy.ended)))
        step(*args, **kwargs)

    strategy.updater.step = spied  # type: ignore[method-assign]
    rank.epoch(1)
    seen.append((int(strategy.begun), int(strategy.ended)))
    return seen


def test_an_update_has_begun_and_not_ended_while_x_is_written() -> None:
    seen, *_ = on_ranks(Task(InconsistentReads(), 3), written)
    n = len(seen) - 1
    assert n >= 8
    assert seen == [*((i + 1, i) for i in range(n)), (n, n)]
