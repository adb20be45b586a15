"""The workers of a server: what the dead have sent, where a worker begins, who has left."""

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

from records.errors import RunFailed
from strategies import STRATEGIES, Replica
from strategies.asynchronous_server.async_param_server import AsyncParamServer
from strategies.common.descent import Descent
from strategies.common.served import Served, join_server
from strategies.common.workers import SERVER, Workers
from tests.ranks import LIMIT, launch, virtual_time, wait_until
from tests.strategies.loops import OPTIMIZERS
from tests.strategies.scripted import Act, PushingWorkers, Scripted, start
from transports.base import ANY, Transport
from transports.messages import WaitTimeout


def serve(transport: Transport) -> tuple[Replica, Descent, Workers]:
    replica = Replica(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), transport)
    descent = Descent([replica.x], OPTIMIZERS["unit"], 0.0, None, transport.recorder)
    return replica, descent, Workers(transport.peers, replica, transport, descent)


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


def welcomed(transport: Transport) -> Any:
    if transport.rank == SERVER:
        replica, descent, workers = serve(transport)
        replica.x.copy_(torch.arange(float(replica.x.numel())))
        replica.b.fill_(7)
        descent.count(123)
        transport.recorder.epoch = 4
        workers.steps = {1: 9, 2: 3}
        workers.welcome_all()
        for _ in transport.peers:
            transport.recv(ANY, "welcomed")
        return workers.steps
    replica, descent, _ = serve(transport)
    steps = join_server(replica, transport, descent)
    transport.isend(None, SERVER, "welcomed")
    found = (steps, transport.recorder.epoch, descent.samples, descent.processed)
    return *found, replica.x.tolist(), replica.b.tolist()


def test_a_worker_begins_where_the_server_says() -> None:
    _, *workers = virtual_time(3).launch(welcomed, 3)
    assert workers == [(steps, 4, 123, 123, [0, 1, 2, 3, 4], [7, 7]) for steps in (9, 3)], "each with its own steps"


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


def with_counts(transport: Transport) -> Any:
    """The server has counted 7 batches; worker k counts 10 k more."""
    replica, descent, workers = serve(transport)
    if transport.rank == SERVER:
        replica.counts = torch.tensor([7])
        workers.welcome_all()
        workers.end_epoch()
        return replica.counts.tolist()
    join_server(replica, transport, descent)
    begun = replica.counts.tolist()
    replica.counts = replica.counts + 10 * transport.rank
    transport.isend(replica.counts, SERVER, "counts")
    transport.isend(replica.b, SERVER, "buffers").wait()
    transport.recv(SERVER, "mean buffers").release()
    return begun


def test_counts_among_the_buffers_go_to_who_joins_and_the_greatest_comes_back() -> None:
    assert virtual_time(3).launch(with_counts, 3) == [[27], [7], [7]]
