"""The synchronous server: the order of its messages."""

from typing import Any

from strategies.synchronous_server.param_server import ParamServer
from tests.strategies.kinds import on_ranks
from tests.strategies.loops import N_STEPS, Rank, Task


def messages(rank: Rank) -> list[tuple[Any, ...]]:
    """What was sent and received in one epoch: op, peer, tag, bytes."""
    rank.epoch(1)
    events = rank.transport.recorder.frame().query("epoch == 1 and op != ''")
    return list(events[["op", "peer", "tag", "bytes"]].itertuples(index=False, name=None))


def test_a_step_is_a_gradient_of_each_in_the_order_of_ranks_and_x_for_all() -> None:
    workers, P = (1, 2, 3), 66 * 8  # bytes of loops' model
    of_server, *of_workers = on_ranks(Task(ParamServer(), 4), messages, record=True)
    step = [("recv", k, "gradient", P) for k in workers] + [("send", k, "parameters", P) for k in workers]
    end = [("recv", k, "goodbye", 0) for k in workers] + [("recv", k, "buffers", 0) for k in workers]
    assert of_server == step * N_STEPS + end + [("send", k, "mean buffers", 0) for k in workers]
    for seen in of_workers:
        of_step = [("send", 0, "gradient", P), ("recv", 0, "parameters", P)]
        end = [("send", 0, "goodbye", 0), ("send", 0, "buffers", 0), ("recv", 0, "mean buffers", 0)]
        assert seen == of_step * N_STEPS + end
