"""The workers of a server: what the dead have sent, who has left, how stale a push is by the versions of others."""

import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradwire.core.records.errors import RunFailed
from gradwire.core.records.tables import applied
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.survivors import Survivors
from gradwire.core.strategy.updater import Updater
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Transport
from strategies import (
    AsyncParamServer,
    BackupWorkers,
    Downpour,
    ElasticAveraging,
    Replica,
)
from strategies.asynchronous_server.push_fetch import PushFetch
from tests.core.transports.samples import world
from tests.ranks import LIMIT, launch, virtual_time, wait_until
from tests.strategies.loops import OPTIMIZERS


def serve(transport: Transport) -> tuple[Replica, Updater, Survivors]:
    replica = Replica(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), transport)
    updater = Updater([replica.x], OPTIMIZERS["unit"], 0.0, None, transport.recorder)
    return replica, updater, Survivors(transport.peers, replica, transport, updater)


def what_the_dead_have_sent(transport: Transport) -> Any:
    """Worker 1 sends two gradients and dies; the server learns of it when it replies to the first."""
    if transport.rank == 1:
        for _ in range(2):
            transport.isend(torch.ones(1), SERVER, "gradient", n=10)
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 2:
        transport.recv(SERVER, "go on")
        transport.isend(None, SERVER, "goodbye")
        return None
    _, _, workers = serve(transport)
    seen = []
    for gradient in workers.messages("gradient"):
        seen.append(gradient.src)
        gradient.release()

        def learns_of_it() -> bool:
            transport.recv(2, "nothing", timeout=0)
            workers.send(None, 1, "reply")
            return 1 not in workers.alive

        assert wait_until(learns_of_it)
        transport.isend(None, 2, "go on")
    return seen, sorted(workers.waiting), workers.steps[1], len(transport.recorder.deaths)


def test_what_the_dead_have_sent_is_not_taken() -> None:
    found = launch(what_the_dead_have_sent, 3, expendable=[1, 2], timeout=LIMIT)
    assert found[SERVER] == ([1], [], 1, 1)


@pytest.mark.parametrize("strategy", [BackupWorkers(), AsyncParamServer(), Downpour()], ids=lambda kind: kind.name)
def test_a_server_names_the_one_that_has_left_without_goodbye(strategy: Served) -> None:
    with world(4) as ranks:
        for rank in ranks:
            rank.timeout = 0.1
        strategy.start(Replica(nn.Linear(1, 1), ranks[SERVER]), ranks[SERVER], OPTIMIZERS["unit"])
        for k in (1, 3):
            ranks[k].isend(None, SERVER, "goodbye")
        ranks[2].close()
        with pytest.raises(RunFailed, match=r"^rank 2 has closed its transport without a goodbye: .*strategy\.finish"):
            strategy.serve()


Act = tuple[str, int]  # "push" or "fetch", and the rank of the worker


def act(transport: Transport, kind: type[PushFetch], acts: list[Act]) -> list[tuple[int, int]]:
    """Workers do what is theirs of `acts`, one a second; the server returns whose pushes it applied, and how stale."""
    strategy = kind()
    strategy.start(Replica(nn.Linear(1, 1), transport), transport, OPTIMIZERS["unit"])
    if transport.rank == SERVER:
        transport.recorder.epoch, strategy.updater.until = 1, sum(what == "push" for what, _ in acts)
        strategy.serve()
        rows = applied(transport.recorder.frame())[["peer", "staleness"]]
        return [(int(peer), int(late)) for peer, late in rows.itertuples(index=False)]
    begun = transport.now()
    for second, (what, k) in enumerate([*acts, ("fetch", transport.rank)], start=1):
        if k == transport.rank:
            transport.sleep(begun + second - transport.now())
            transport.isend(torch.ones(2) if what == "push" else None, SERVER, what, n=what == "push")
            if what == "fetch":
                transport.recv(SERVER, "parameters").release()
    return []


ACTS = st.lists(st.tuples(st.sampled_from(["push", "fetch"]), st.integers(1, 3)), max_size=15)


@settings(max_examples=30)
@given(st.sampled_from([Downpour, ElasticAveraging]), ACTS)
def test_staleness_is_a_count_of_others_pushes(kind: type[PushFetch], acts: list[Act]) -> None:
    acts, missed, expected = [*acts, ("push", 1)], dict.fromkeys((1, 2, 3), 0), []
    for what, k in acts:
        if what == "fetch":
            missed[k] = 0
            continue
        expected.append((k, missed[k]))
        missed = {j: count + (j != k) for j, count in missed.items()}
    assert virtual_time(4).launch(act, 4, kind, acts, record=True)[SERVER] == expected
