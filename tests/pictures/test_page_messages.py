"""The messages of a page: which receipt is of which sending, which chunk and which version of x they carry."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import applied, dropped
from gradwire.core.transports.base import Transport
from gradwire.pictures.messages import PARAMETERS, with_messages
from gradwire.virtual_time.launcher import Death
from strategies.collectives import ring_all_reduce
from tests.pictures.samples import loaded, simulated
from tests.ranks import virtual_time
from tests.runs import strategy_of


def truth(transport: Transport, rounds: int, numel: int) -> tuple[list[tuple[str, int, int]], pd.DataFrame]:
    """Take part in so many ring all-reduces; return of each receipt tag, sender, and the chunk that changed; events."""
    vector = torch.arange(numel, dtype=torch.float64) + 1 + 100 * transport.rank
    receipts: list[tuple[str, int, int]] = []
    of = torch.cat([torch.full((len(part),), c) for c, part in enumerate(vector.tensor_split(transport.world_size))])

    class Watch(Recorder):
        before = vector.clone()

        def add(self, phase: str, t0: float, t1: float, op: str = "", *rest: Any, **others: Any) -> None:
            super().add(phase, t0, t1, op, *rest, **others)
            if op == "recv":
                changed = of[(vector != self.before).nonzero().flatten()]
                peer, tag = rest[:2]
                receipts.append((tag, peer, int(changed.unique())))
            self.before = vector.clone()

    transport.recorder = Watch(transport.rank)
    transport.recorder.clock = transport.now
    for _ in range(rounds):
        ring_all_reduce(vector, transport)
    return receipts, transport.recorder.frame()


@settings(max_examples=6)
@given(world_size=st.integers(2, 6), rounds=st.integers(1, 3), more=st.integers(0, 5))
def test_the_chunk_of_a_message_is_the_one_that_changes(world_size: int, rounds: int, more: int) -> None:
    found: list[Any] = virtual_time(world_size).launch(truth, world_size, rounds, world_size + more)
    events = with_messages(pd.concat([frame for _, frame in found], ignore_index=True), ["worker"] * world_size)
    for rank, (receipts, _) in enumerate(found):
        received = events[(events["rank"] == rank) & (events["op"] == "recv")]
        assert list(zip(received["tag"], received["peer"], received["chunk"], strict=True)) == receipts
    for _, ends in events[events["message"] >= 0].groupby("message"):
        assert sorted(ends["op"]) == ["recv", "send"]
        assert ends["chunk"].nunique() == 1
        assert ends["bytes"].nunique() == 1


SERVED = ("param_server", "async_param_server", "downpour", "easgd", "dgs", "backup_workers")


@pytest.mark.parametrize("name", SERVED)
def test_versions_are_those_of_what_was_applied(tmp_path: Path, name: str) -> None:
    simulated(tmp_path, strategy_of(name, **{"tau": 2} if name == "easgd" else {}))
    run = loaded(tmp_path)
    events = with_messages(run.events, run.roles)
    used = pd.concat([applied(events), dropped(events)]).sort_index()
    assert len(used) > 10
    at_server = events[(events["rank"] == 0) & (events["op"] == "recv")]
    for worker, of_worker in used.groupby("peer"):
        came = at_server[(at_server["peer"] == worker) & (at_server["version"] >= 0)]
        assert list(came["version"]) == list(of_worker["version_read"])
        assert set(came["tag"]) <= {"gradient", "push", "rest"}
        sent = events[(events["rank"] == worker) & events["message"].isin(came["message"])]
        assert list(sent["version"]) == list(came["version"]), "also where it is sent"
    got = events[(events["rank"] > 0) & (events["op"] == "recv")]
    assert (got["version"].ge(0) == got["tag"].isin(PARAMETERS)).all(), "nothing else carries x"
    if name in ("param_server", "async_param_server", "backup_workers"):  # what is computed next is computed on that
        for worker, of_worker in used.groupby("peer"):
            read = got.loc[(got["rank"] == worker) & (got["version"] >= 0), "version"]
            assert set(of_worker["version_read"]) <= set(read)


def test_what_goes_to_every_server_is_of_the_same_version(tmp_path: Path) -> None:
    simulated(tmp_path, strategy_of("sharded_param_server", servers=2))
    run = loaded(tmp_path)
    events = with_messages(run.events, run.roles)
    moved = events[events["op"].isin(["send", "recv"]) & (events["rank"] >= 2)]
    for tag in ("gradient", "parameters"):
        first, second = (moved[(moved["peer"] == server) & (moved["tag"] == tag)] for server in (0, 1))
        assert len(first) == len(second) > 10
        assert (first["version"] >= 0).all()
        for worker in (2, 3):
            versions = [list(of.loc[of["rank"] == worker, "version"]) for of in (first, second)]
            assert versions[0] == versions[1]


def test_messages_of_two_lives_are_not_taken_for_one(tmp_path: Path) -> None:
    simulated(tmp_path, "async_param_server", Death(3, 0.02, 0.04))
    run = loaded(tmp_path)
    assert run.died == {3}
    events = with_messages(run.events, run.roles, run.died)
    begins = events.loc[events["rank"] == 3, "t0"].min()
    assert begins >= 0.04
    own = events[(events["rank"] == 3) & (events["message"] >= 0)]
    ends = events[events["message"].isin(own["message"])].groupby("message")
    assert (ends["op"].nunique() == 2).all(), "all that it tells of has its other end"
    assert {"position", "initial parameters", "gradient", "parameters"} <= set(own["tag"])
    sent, received = (events[events["op"] == op] for op in ("send", "recv"))
    both = sent.merge(received, on="message", suffixes=("", "_received"))
    assert (both["t0"] <= both["t1_received"]).all()
    assert (both["bytes"] == both["bytes_received"]).all()
    (welcomed,) = both.loc[(both["tag"] == "initial parameters") & (both["peer"] == 3), ["t0", "version"]].to_numpy()
    assert welcomed[0] == 0.04
    assert welcomed[1] > 0
    alone = events[(events["peer"] == 3) & ~events["message"].isin(own["message"]) & (events["message"] >= 0)]
    assert len(alone) >= 3
    assert alone["t0"].max() < begins, "what has one end is of its first life"
