"""What the collectives of a process group send: each a function of (outs, ins, root, op, transport) of one rank.

`outs` and `ins` are vectors. The all-reduce is one of `strategies/all_reduce/`; a reduce-scatter and an all-gather
are the ring's halves; a broadcast goes along a binomial tree; a barrier takes log2 N rounds. In all others, vectors go
straight from rank to rank.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch

from gradwire.core.transports.throttle import Rates
from gradwire.strategies import collectives, predictions
from gradwire.virtual_time.transport import Simulated

Vectors = Sequence[torch.Tensor]
Plan = Callable[[Vectors, Vectors, int, Any, Simulated], None]
Sums = tuple[str, Rates]
ANY = Rates(1.0, 1.0)
_SUMS = ("SUM", "AVG")
_COMBINES = {
    "MIN": torch.minimum, "MAX": torch.maximum, "PRODUCT": torch.mul,
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor,
}  # fmt: skip


def plans(all_reduce: str, rates: Rates = ANY) -> dict[str, Plan]:
    """Return the collectives by their names, with this all-reduce, at its best on a network with these rates."""
    sums: Sums = (all_reduce, rates)
    return {
        "all_reduce": partial(_all_reduce, sums), "reduce": partial(_reduce, sums),
        "reduce_scatter": _reduce_scatter, "all_gather": _all_gather, "broadcast": _broadcast, "barrier": _barrier,
        "all_to_all": _exchange, "gather": _gather, "scatter": _scatter,
    }  # fmt: skip


def _all_reduce(sums: Sums, outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    N, (vector,) = transport.world_size, outs
    if op.name not in _SUMS:
        _combine(vector, [vector.clone()] * N, op, transport)
    elif N > 1:
        transport.lend(vector)
        name, rates = sums
        all_reduce = predictions.candidates(N, vector.nbytes, rates).get(name) or predictions.all_reduces()[name]()
        all_reduce.transport = transport
        all_reduce.all_reduce(vector, 0)
        _divide(vector, op, N)


def _reduce(sums: Sums, outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    total = outs[0].clone()
    _all_reduce(sums, [total], ins, root, op, transport)
    if transport.rank == root:
        outs[0].copy_(total)


def _reduce_scatter(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
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


def _all_gather(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    outs[transport.rank].copy_(ins[0])
    for work in collectives.all_gather([outs[i - 1] for i in range(transport.world_size)], transport):
        work.wait()


def _broadcast(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    N, (vector,) = transport.world_size, outs
    r, has = (transport.rank - root) % N, 1
    while has < N:
        if r < has and r + has < N:
            transport.isend(vector, (r + has + root) % N, "broadcast")
        elif has <= r < 2 * has:
            transport.recv((r - has + root) % N, "broadcast").copy_to(vector)
        has *= 2


def _barrier(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    N, r, known = transport.world_size, transport.rank, 1
    while known < N:
        transport.isend(None, (r + known) % N, f"barrier {known}")
        transport.recv((r - known) % N, f"barrier {known}").release()
        known *= 2


def _exchange(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    """Copy ins[k] to outs[r] of rank k, unless it is empty."""
    N, r = transport.world_size, transport.rank
    outs[r].copy_(ins[r])
    for i in range(1, N):
        if ins[(r + i) % N].numel():
            transport.isend(ins[(r + i) % N], (r + i) % N, "exchange")
    for i in range(1, N):
        if outs[r - i].numel():
            transport.recv((r - i) % N, "exchange").copy_to(outs[r - i])


def _gather(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    N, r, nothing = transport.world_size, transport.rank, ins[0][:0]
    sent = [ins[0] if k == root else nothing for k in range(N)]
    _exchange(outs if r == root else [nothing] * N, sent, root, op, transport)


def _scatter(outs: Vectors, ins: Vectors, root: int, op: Any, transport: Simulated) -> None:
    N, r, nothing = transport.world_size, transport.rank, outs[0][:0]
    taken = [outs[0] if k == root else nothing for k in range(N)]
    _exchange(taken, ins if r == root else [nothing] * N, root, op, transport)


def _combine(out: torch.Tensor, ins: Vectors, op: Any, transport: Simulated) -> None:
    """Combine what all ranks have for this one, without a sum."""
    if op.name not in _COMBINES:
        raise NotImplementedError(f"ReduceOp.{op.name} on a virtual cluster")
    everybodys = list(out.new_empty(len(ins), out.numel()))
    _exchange(everybodys, ins, -1, op, transport)
    out.copy_(reduce(_COMBINES[op.name], everybodys))


def _divide(vector: torch.Tensor, op: Any, by: int) -> None:
    if op.name == "AVG":
        vector.div_(by, rounding_mode=None if vector.is_floating_point() else "trunc")
