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
from gradwire.core.strategy.descent import Descent
from gradwire.core.strategy.served import Served
from gradwire.core.strategy.survivors import Survivors
from gradwire.core.strategy.workers import SERVER
from gradwire.core.transports.base import Transport
from gradwire.core.transports.messages import WaitTimeout
from strategies import STRATEGIES, AsyncParamServer, Downpour, ElasticAveraging, Replica
from strategies.asynchronous_server.push_fetch import PushFetch
from tests.ranks import LIMIT, launch, wait_until
from tests.strategies.loops import OPTIMIZERS
from tests.strategies.scripted import Act, PushingWorkers, Scripted, epochs, staleness, start


def serve(transport: Transport) -> tuple[Replica, Descent, Survivors]:
    replica = Replica(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), transport)
    descent = Descent([replica.x], OPTIMIZERS["unit"], 0.0, None, transport.recorder)
    return replica, descent, Survivors(transport.peers, replica, transport, descent)


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


@pytest.mark.parametrize("name", ["backup_workers", "async_param_server", "downpour"])
def test_a_server_names_the_one_that_has_left_without_goodbye(name: str) -> None:
    acts: list[Act] = [("close", 2)]
    transport = (PushingWorkers if name == "downpour" else Scripted)(3, acts)
    server = STRATEGIES[name]()
    assert isinstance(server, Served)
    start(server, transport)
    for k in (1, 3):
        transport.computing.discard(k)
        transport.send_to_server(k, "goodbye")
    with pytest.raises(RunFailed, match=r"^rank 2 has closed its transport without a goodbye: .* strategy\.finish\(\)"):
        server.serve()


def test_a_server_that_waits_for_those_who_are_there_names_no_other() -> None:
    transport, server = Scripted(2), AsyncParamServer()
    start(server, transport)
    transport.computing.clear()
    with pytest.raises(WaitTimeout):
        server.serve()


# The staleness of a push, scripted


def served(kind: type[PushFetch], workers: int, acts: list[Act]) -> PushingWorkers:
    """Serve one epoch of what the script pushes."""
    server, transport = kind(), PushingWorkers(workers, acts)
    start(server, transport)
    list(epochs(server, transport, max(1, sum(what == "push" for what, _ in acts))))
    return transport


KINDS: list[type[PushFetch]] = [Downpour, ElasticAveraging]
ACTS = st.lists(st.tuples(st.sampled_from(["push", "fetch"]), st.integers(1, 3)), max_size=40).map(
    lambda acts: [*acts, ("push", 1)]
)


@settings(max_examples=60)
@given(st.sampled_from(KINDS), ACTS)
def test_staleness_is_a_count_of_others_pushes(kind: type[PushFetch], acts: list[Act]) -> None:
    missed = dict.fromkeys((1, 2, 3), 0)
    expected: list[tuple[int, int]] = []
    n_pushes = sum(what == "push" for what, _ in acts)
    for what, k in acts:
        if len(expected) == n_pushes:
            break  # the epoch has its samples: no fetch is answered
        if what == "fetch":
            missed[k] = 0
            continue
        expected.append((k, missed[k]))
        missed = {j: count + (j != k) for j, count in missed.items()}
    assert staleness(served(kind, 3, acts)) == expected


def test_a_returned_worker_begins_with_what_it_was_welcomed_with() -> None:
    acts: list[Act] = [("push", 1), ("push", 2), ("die", 1), ("return", 1), ("push", 1), ("push", 2), ("push", 1)]
    assert staleness(served(Downpour, 2, acts)) == [(1, 0), (2, 1), (1, 0), (2, 2), (1, 1)]
