"""What the collectives of a process group send: each a function of (outs, ins, root, op, transport) of one rank.

`outs` and `ins` are vectors. The all-reduce is given, as a function; a reduce-scatter and an all-gather are the ring's
halves; a broadcast goes along a binomial tree; a barrier takes log2 N rounds. In all others, vectors go straight from
rank to rank. They run on any transport.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch

from gradwire.core.transports.base import Transport
from gradwire.strategies import collectives

Vectors = Sequence[torch.Tensor]
Plan = Callable[[Vectors, Vectors, int, Any, Any], None]
SumUp = Callable[[torch.Tensor, Any], Any]
"""Replaces a vector by its sum over all ranks of a transport: an all-reduce."""
_SUMS = ("SUM", "AVG")
_COMBINES = {
    "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


def plans(sum_up: SumUp) -> dict[str, Plan]:
    """Return the collectives by their names, with this all-reduce."""
    return {
        "all_reduce": partial(_all_reduce, sum_up), "reduce": partial(_reduce, sum_up),
        "reduce_scatter": _reduce_scatter, "all_gather": _all_gather, "broadcast": _broadcast, "barrier": _barrier,
        "all_to_all": _exchange, "gather": _gather, "scatter": _scatter,
    }  # fmt: skip


def _all_reduce(sum_up: SumUp, outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, (vector,) = transport.world_size, outs
    if op.name not in _SUMS:
        _combine(vector, [vector.clone()] * N, op, transport)
    elif N > 1:
        sum_up(vector, transport)
        _divide(vector, op, N)


def _reduce(sum_up: SumUp, outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    total = outs[0].clone()
    _all_reduce(sum_up, [total], ins, root, op, transport)
    if transport.rank == root:
        outs[0].copy_(total)


def _reduce_scatter(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, (out,) = transport.world_size, outs
    if op.name not in _SUMS:
        _combine(out, ins, op, transport)
        return
    parts = [chunk.clone() for chunk in ins]
    _, sent = collectives.reduce_scatter(
        [parts[i - 1] for i in range(N)], transport
    )  # which leaves chunk r + 1 to rank r
    out.copy_(parts[transport.rank])
    _divide(out, op, N)
    for work in sent:
        work.wait()


def _all_gather(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    outs[transport.rank].copy_(ins[0])
    for work in collectives.all_gather([outs[i - 1] for i in range(transport.world_size)], transport):
        work.wait()


def _broadcast(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, (vector,) = transport.world_size, outs
    r, has = (transport.rank - root) % N, 1
    while has < N:
        if r < has and r + has < N:
            transport.isend(vector, (r + has + root) % N, "broadcast")
        elif has <= r < 2 * has:
            transport.recv((r - has + root) % N, "broadcast").copy_to(vector)
        has *= 2


def _barrier(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, r, known = transport.world_size, transport.rank, 1
    while known < N:
        transport.isend(None, (r + known) % N, f"barrier {known}")
        transport.recv((r - known) % N, f"barrier {known}").release()
        known *= 2


def _exchange(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    """Copy ins[k] to outs[r] of rank k, unless it is empty."""
    N, r = transport.world_size, transport.rank
    outs[r].copy_(ins[r])
    for i in range(1, N):
        if ins[(r + i) % N].numel():
            transport.isend(ins[(r + i) % N], (r + i) % N, "exchange")
    for i in range(1, N):
        if outs[r - i].numel():
            transport.recv((r - i) % N, "exchange").copy_to(outs[r - i])


def _gather(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, r, nothing = transport.world_size, transport.rank, ins[0][:0]
    sent = [ins[0] if k == root else nothing for k in range(N)]
    _exchange(outs if r == root else [nothing] * N, sent, root, op, transport)


def _scatter(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Transport) -> None:
    N, r, nothing = transport.world_size, transport.rank, outs[0][:0]
    taken = [outs[0] if k == root else nothing for k in range(N)]
    _exchange(taken, ins if r == root else [nothing] * N, root, op, transport)


def _combine(out: torch.Tensor, ins: Vectors, op: Any, transport: Transport) -> None:
    """Combine what all ranks have for this one, without a sum."""
    if op.name not in _COMBINES:
        raise NotImplementedError(f"ReduceOp.{op.name}: is none of {', '.join([*_SUMS, *_COMBINES])}")
    everybodys = list(out.new_empty(len(ins), out.numel()))
    _exchange(everybodys, ins, -1, op, transport)
    out.copy_(reduce(_COMBINES[op.name], everybodys))


def _divide(vector: torch.Tensor, op: Any, by: int) -> None:
    if op.name == "AVG":
        vector.div_(by, rounding_mode=None if vector.is_floating_point() else "trunc")
