"""The synchronous server: the weighted mean, and the order of its messages."""

from typing import Any

from strategies.synchronous_server.param_server import ParamServer
from tests.ranks import virtual_time
from tests.strategies.loops import N_STEPS, Rank, Task
from transports.base import Transport


def messages(transport: Transport, task: Task) -> tuple[int, list[tuple[Any, ...]]]:
    """The bytes of x, and what was sent and received in one epoch: op, peer, tag, bytes."""
    rank = Rank(transport, task)
    transport.recorder.epoch = 1
    rank.epoch(1)
    events = transport.recorder.frame().query("epoch == 1 and op != ''")
    rank.close()
    return rank.replica.x.nbytes, list(events[["op", "peer", "tag", "bytes"]].itertuples(index=False, name=None))


def test_a_step_is_a_gradient_of_each_in_the_order_of_ranks_and_x_for_all() -> None:
    workers = (1, 2, 3)
    (P, of_server), *of_workers = virtual_time(4).launch(messages, 4, Task(ParamServer(), 4), record=True)
    step = [("recv", k, "gradient", P) for k in workers] + [("send", k, "parameters", P) for k in workers]
    end = [("recv", k, "goodbye", 0) for k in workers] + [("recv", k, "buffers", 0) for k in workers]
    assert of_server == step * N_STEPS + end + [("send", k, "mean buffers", 0) for k in workers]
    for _, seen in of_workers:
        one = [("send", 0, "gradient", P), ("recv", 0, "parameters", P)]
        end = [("send", 0, "goodbye", 0), ("send", 0, "buffers", 0), ("recv", 0, "mean buffers", 0)]
        assert seen == one * N_STEPS + end
