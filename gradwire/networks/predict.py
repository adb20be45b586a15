"""The seconds of a step in the latency-bandwidth model (Hockney, 1994), by the formulas of a strategy."""

import dataclasses

from gradwire.core.strategy.cost_model import evaluate_cost
from gradwire.core.strategy.strategy import Strategy
from gradwire.core.strategy.traits import Coded
from gradwire.core.transports.throttle import FAIR, IN_ORDER


def predict(
    strategy: Strategy,
    n_gpus: int,
    nbytes: int,
    compute: float,
    bandwidth: float,
    latency: float,
    code: Coded | None = None,
    itemsize: int = 4,
    sharing: str = FAIR,
    blocks: int = 1,
    overhead: float = 0.0,
) -> float | None:
    """Return the seconds of a step in the latency-bandwidth model (Hockney, 1994); None where it has none.

    compute + messages latency + bytes / bandwidth, of the messages and bytes of the critical path, as in Paleo (Qi
    et al., ICLR 2017), and `overhead` for each message `in_turn`; where these travel `while_computing`, the greater of
    `compute` and the rest. `bandwidth` in payload bytes a second, times in seconds; `sharing`: FAIR or IN_ORDER, see
    `sharing.py` of virtual time. Without `--clip_norm`, for which some strategies send more; the codec computes in
    `compute`.
    """
    cost = strategy.cost(code.kind if code else None)
    path = cost.in_order if cost.in_order and sharing == IN_ORDER else cost.path
    if n_gpus == 1 and path is not None:
        return compute  # there is no other rank to send to
    if path is None or (path.powers_of_two and n_gpus & (n_gpus - 1)):
        return None
    messages, on_the_way = evaluate_cost(strategy, path, n_gpus, nbytes, code, itemsize, blocks)
    sending = messages * latency + on_the_way / bandwidth
    if overhead:
        in_turn = dataclasses.replace(path, messages=path.in_turn or path.messages)
        sending += overhead * evaluate_cost(strategy, in_turn, n_gpus, nbytes, code, itemsize, blocks)[0]
    return max(compute, sending) if path.while_computing else compute + sending
