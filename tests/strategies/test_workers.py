"""The workers of a server: whose message comes next, who is alive, who waits; above each test, its ranks' work."""

import os
import signal
from collections.abc import Callable
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


def serve(transport: Transport, after_update: Callable[[], None] = lambda: None) -> tuple[Replica, Descent, Workers]:
    replica = Replica(nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), transport)
    descent = Descent([replica.x], OPTIMIZERS["unit"], 0.0, None, transport.recorder)
    descent.after_update = after_update
    return replica, descent, Workers(transport.peers, replica, transport, descent)


def in_rounds(transport: Transport) -> Any:
    """Workers send so many gradients as their number, the last ones first; the server goes round by round."""
    if transport.rank != SERVER:
        for i in range(transport.rank):
            transport.isend(torch.tensor([float(i)]), SERVER, "gradient", n=transport.rank)
        transport.isend(None, SERVER, "goodbye")
        return None
    updates: list[int] = []
    _, descent, workers = serve(transport, lambda: updates.append(descent.version))
    seen = []
    for gradients in workers.rounds():
        seen.append([(gradient.src, gradient.vector.item(), gradient.version) for gradient in gradients])
        descent.count(1)
    return seen, updates, sorted(workers.present), sorted(workers.alive)


def test_a_round_is_a_gradient_of_each_that_has_not_left_in_the_order_of_ranks() -> None:
    seen, updates, present, alive = virtual_time(4).launch(in_rounds, 4)[SERVER]
    assert seen == [[(1, 0, 0), (2, 0, 0), (3, 0, 0)], [(2, 1, 0), (3, 1, 0)], [(3, 2, 0)]]
    assert updates == [1, 2, 3], "a checkpoint may be written after each"
    assert (present, alive) == ([], [1, 2, 3])


def as_they_come(transport: Transport) -> Any:
    """Worker 2 sends when 1 has; 1 says goodbye, and 2 waits when there are enough samples."""
    if transport.rank != SERVER:
        for i in range(3):
            if transport.rank == 2:
                transport.recv(1, "your turn")
            transport.isend(torch.tensor([float(i)]), SERVER, "gradient", n=10)
            reply = transport.recv(SERVER, "parameters")
            reply.release()
            if transport.rank == 1 and i == 2:
                transport.isend(None, SERVER, "goodbye")
            if transport.rank == 1:
                transport.isend(None, 2, "your turn")
                transport.recv(2, "my turn")
            else:
                transport.isend(None, 1, "my turn")
        return None
    replica, descent, workers = serve(transport)
    seen: list[Any] = []
    for gradient in workers.messages("gradient", until=60):
        seen.append((gradient.src, gradient.version, sorted(workers.waiting), dict(workers.steps), workers.slowest))
        gradient.release()
        descent.count(gradient.n)
        if descent.samples < 60:
            for k in workers.take_waiting():
                workers.send_copy(replica.x, k, n=descent.samples)
    seen.append(sorted(workers.waiting))
    for k in workers.take_waiting():
        workers.send_copy(replica.x, k, n=descent.samples)
    return seen, sorted(workers.present), dict(workers.version_read)


def test_messages_come_in_their_order_with_the_version_that_was_read() -> None:
    seen, present, read = virtual_time(3).launch(as_they_come, 3)[SERVER]
    assert seen == [
        (1, 0, [1], {1: 1, 2: 0}, 0),
        (2, 0, [2], {1: 1, 2: 1}, 1),
        (1, 1, [1], {1: 2, 2: 1}, 1),
        (2, 2, [2], {1: 2, 2: 2}, 2),
        (1, 3, [1], {1: 3, 2: 2}, 2),
        (2, 4, [2], {1: 3, 2: 3}, 3),
        [2],
    ]
    assert present == [2], "who says goodbye is not waited for"
    assert read == {1: 5, 2: 6}


def who_dies(transport: Transport) -> Any:
    """Worker 1 sends a gradient and dies; worker 2 continues."""
    if transport.rank == 1:
        transport.isend(torch.ones(1), SERVER, "gradient", n=10)
        transport.recv(SERVER, "die")
        os.kill(os.getpid(), signal.SIGKILL)
    if transport.rank == 2:
        transport.recv(SERVER, "go on")
        transport.isend(torch.ones(1), SERVER, "gradient", n=10)
        transport.isend(torch.zeros(2), SERVER, "buffers")
        transport.recv(SERVER, "mean buffers").release()
        return None
    _, descent, workers = serve(transport)
    departures: list[list[int]] = []
    seen = []

    def departed() -> None:
        departures.append(sorted(workers.alive))
        if departures == [[2]]:
            transport.isend(None, 2, "go on")

    for gradient in workers.messages("gradient", until=20, on_departure=departed):
        seen.append(gradient.src)
        gradient.release()
        descent.count(gradient.n)
        if gradient.src == 1:
            transport.isend(None, 1, "die")
    workers.send(None, 1, "nobody hears it").wait()
    workers.end_epoch(torch.ones(2), torch.empty(0, dtype=torch.int64))
    return seen, departures, transport.recorder.deaths, sorted(workers.alive)


def test_a_dead_worker_is_neither_waited_for_nor_sent_to() -> None:
    seen, departures, deaths, alive = launch(who_dies, 3, expendable=[1, 2], timeout=LIMIT)[SERVER]
    assert seen == [1, 2]
    assert departures == [[2]]
    assert deaths == [{"rank": 1, "samples": 10, "step": 2, "returned": False}]
    assert alive == [2]


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


def copied(transport: Transport) -> Any:
    """The server changes x right after it has sent copies; the next copy waits until the first is given back."""
    if transport.rank == 1:
        first = transport.recv(SERVER, "parameters")
        transport.recv(SERVER, "changed")
        kept = first.vector.tolist()
        first.release()
        return kept, transport.recv(SERVER, "parameters").detach().vector.tolist()
    replica, _, workers = serve(transport)
    replica.x.fill_(1)
    workers.send_copy(replica.x, 1, 0)
    replica.x.fill_(2)
    transport.isend(None, 1, "changed")
    workers.send_copy(replica.x, 1, 0)
    replica.x.fill_(3)
    return None


def test_a_copy_is_not_changed_while_it_is_read() -> None:
    assert launch(copied, 2, timeout=LIMIT)[1] == ([1.0] * 5, [2.0] * 5)


def dropped(transport: Transport) -> Any:
    if transport.rank == 1:
        vector = transport.allocate(1)
        for _ in range(2):
            transport.isend(vector, SERVER, "gradient").wait()
        return None
    _, descent, workers = serve(transport)
    for drop in (True, False):
        message = workers._take(transport.recv(1, "gradient"))
        descent.count(1)
        if drop:
            workers.drop(message)
        else:
            workers.record_applied(message)
            message.release()
    events = transport.recorder.frame().query("version_read >= 0")
    return list(events[["phase", "op", "peer", "version_read", "version_applied"]].itertuples(index=False, name=None))


def test_what_is_recorded_of_a_gradient_and_that_a_dropped_one_is_given_back() -> None:
    rows = virtual_time(2).launch(dropped, 2, record=True)[SERVER]
    assert rows == [("communicate", "drop", 1, 0, 1), ("update", "", 1, 0, 2)]


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
        counts = replica.counts
        workers.end_epoch(replica.b, counts)
        return counts.tolist()
    join_server(replica, transport, descent)
    begun = replica.counts.tolist()
    replica.counts = replica.counts + 10 * transport.rank
    transport.isend(replica.counts, SERVER, "counts")
    transport.isend(replica.b, SERVER, "buffers").wait()
    transport.recv(SERVER, "mean buffers").release()
    return begun


def test_counts_among_the_buffers_go_to_who_joins_and_the_greatest_comes_back() -> None:
    assert virtual_time(3).launch(with_counts, 3) == [[27], [7], [7]]
