"""What ranks share that a script starts by multiprocessing: what it gets from them, and the order in which it does."""

import pytest

from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts.every_order import examine
from gradwire.torch_scripts.script import Script
from gradwire.torch_scripts.virtual import Cluster
from gradwire.virtual_time.ranks import Deadlock
from tests.torch_scripts import SCRIPTS, at, run_script

FILE, N = "shares.py", 3
IN_TIME = [(2, [3.0, 3.0]), (1, [3.0, 3.0]), (0, [3.0, 3.0])]


def run(*arguments: str) -> Cluster:
    return run_script(FILE, *arguments, n=N)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("queue", IN_TIME),
        ("simple queue", IN_TIME),
        ("after join", [2, 1, 0]),
        ("polls", 3),
        ("spawn", [0, 1, 2]),
        ("event", ([2, 1, 0], True)),
        ("tasks", [1, 4, 9, 16]),
        ("manager", (14, [("first", 0), *((rank, {"rank": rank}) for rank in range(N))], [0, 1, 2])),
        ("limit", "empty"),
        ("helper", 0),
    ],
)
def test_what_starts_ranks_gets_what_they_share(name: str, says: object, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = run(name)
    said = " ".join(map(str, says)) if isinstance(says, tuple) else str(says)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"rank {rank}: {said}" for rank in range(N)]
    if name == "queue":
        assert [round(rank.clock) for rank in cluster.ranks] == [3, 2, 1]
        assert all("all_reduce" in rank.recorder.frame()["tag"].str.cat() for rank in cluster.ranks)


def test_ranks_share_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    run("pipes")
    assert capsys.readouterr().out == "rank 0: 7\n"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gets too often", f"deadlock: what started them waits in get of a Queue at {at(FILE, 'results.get()  # one')}"
                           "; ended: rank 0, 1, 2"),
        ("fails", f"rank 1 raised ValueError: no, at {at(FILE, 'ValueError(')}"),
    ],
)  # fmt: skip
def test_a_process_that_fails_or_waits_for_ever_is_named(name: str, says: str) -> None:
    with pytest.raises(RunFailed) as failed:
        run(name)
    assert str(failed.value) == says
    assert isinstance(failed.value, Deadlock) == says.startswith("deadlock")


def test_a_process_of_no_rank_is_told_that_it_shares_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run("helper", "puts")
    told = "what ranks share, in a process that is no rank: make it after init_process_group\n"
    assert capfd.readouterr().err.count(told) == N


def test_orders_of_what_is_shared_are_not_explored() -> None:
    report = examine(Script(str(SCRIPTS / FILE), ["queue"]), N)
    assert "multiprocessing's Queue: not every order of what processes do with it is run" in report.broken
