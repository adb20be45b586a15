"""What a process group's collectives send: each as a function of (..., transport), on tensors of one rank.

The all-reduce is one of `strategies/collectives.py`; a reduce-scatter and an all-gather are its halves. The others are
those of gloo in their rounds: a binomial tree for a broadcast, direct messages for the rest.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch.distributed import ReduceOp

from strategies.collectives import all_gather, gather_and_add, naive_all_reduce, reduce_scatter, ring_all_reduce
from transports.base import Transport

AllReduce = Callable[[torch.Tensor, Transport], object]
ALL_REDUCES: dict[str, AllReduce] = {"ring": ring_all_reduce, "naive": naive_all_reduce, "all_gather": gather_and_add}
_COMBINES = {
    ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum, ReduceOp.PRODUCT: torch.mul,
    ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor,
}  # fmt: skip
Vectors = Sequence[torch.Tensor]


def all_reduce_by(vector: torch.Tensor, op: ReduceOp, transport: Transport, add: AllReduce) -> None:
    """Replace `vector` [P] on every rank by what `op` makes of all; sums are made by `add`."""
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        if transport.world_size > 1:
            add(vector, transport)
        if op == ReduceOp.AVG:
            _divide(vector, transport.world_size)
        return
    everybodys = list(vector.new_empty(transport.world_size, vector.numel()))
    gather_all(everybodys, vector, transport)
    vector.copy_(reduce(_combine(op), everybodys))


def reduce_scatter_by(out: torch.Tensor, chunks: Vectors, op: ReduceOp, transport: Transport) -> None:
    """Make `out` [P/N] what `op` makes of the chunk of this rank's number, of all ranks."""
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        whole = torch.cat(list(chunks))
        all_reduce_by(whole, op, transport, ring_all_reduce)
        out.copy_(whole.split([len(chunk) for chunk in chunks])[transport.rank])
        return
    N, parts = transport.world_size, [chunk.clone() for chunk in chunks]
    _, sent = reduce_scatter([parts[i - 1] for i in range(N)], transport)  # which leaves chunk r + 1 to rank r
    out.copy_(parts[transport.rank])
    if op == ReduceOp.AVG:
        _divide(out, N)
    for work in sent:
        work.wait()


def gather_all(outs: Vectors, vector: torch.Tensor, transport: Transport) -> None:
    """Copy the `vector` of each rank to `outs` of every rank, by the ring."""
    outs[transport.rank].copy_(vector)
    for work in all_gather([outs[i - 1] for i in range(transport.world_size)], transport):
        work.wait()


def broadcast_from(vector: torch.Tensor, root: int, transport: Transport) -> None:
    """Copy `vector` [P] of `root` to every rank: who has it passes it on, to twice as many in each round."""
    N = transport.world_size
    r, has = (transport.rank - root) % N, 1
    sent = []
    while has < N:
        if r < has and r + has < N:
            sent.append(transport.isend(vector, (r + has + root) % N, "broadcast"))
        elif has <= r < 2 * has:
            transport.recv((r - has + root) % N, "broadcast").copy_to(vector)
        has *= 2
    for work in sent:
        work.wait()


def reduce_to(vector: torch.Tensor, root: int, op: ReduceOp, transport: Transport) -> None:
    """Replace `vector` [P] of `root` by what `op` makes of all: a reduce-scatter, whose chunks go to the root."""
    N, r = transport.world_size, transport.rank
    chunks = vector.tensor_split(N)
    mine = chunks[r].clone()
    reduce_scatter_by(mine, chunks, op, transport)
    gather_to(chunks if r == root else [], mine, root, transport)


def gather_to(outs: Vectors, vector: torch.Tensor, root: int, transport: Transport) -> None:
    """Copy the `vector` of each rank to `outs` of the root."""
    if transport.rank != root:
        transport.isend(vector, root, "gather").wait()
        return
    outs[root].copy_(vector)
    for peer in transport.peers:
        transport.recv(peer, "gather").copy_to(outs[peer])


def scatter_from(out: torch.Tensor, vectors: Vectors, root: int, transport: Transport) -> None:
    """Copy the one of the root's `vectors` that has a rank's number to `out` of that rank."""
    if transport.rank != root:
        transport.recv(root, "scatter").copy_to(out)
        return
    out.copy_(vectors[root])
    for work in [transport.isend(vectors[peer], peer, "scatter") for peer in transport.peers]:
        work.wait()


def all_to_all(outs: Vectors, vectors: Vectors, transport: Transport) -> None:
    """Copy the one of every rank's `vectors` that has this rank's number to `outs`, which may differ in length."""
    N, r = transport.world_size, transport.rank
    outs[r].copy_(vectors[r])
    sent = [transport.isend(vectors[(r + i) % N], (r + i) % N, "all-to-all") for i in range(1, N)]
    for i in range(1, N):
        transport.recv((r - i) % N, "all-to-all").copy_to(outs[(r - i) % N])
    for work in sent:
        work.wait()


def meet(transport: Transport) -> None:
    """Return when all ranks have called this: in each round a rank hears of twice as many (dissemination)."""
    N, r, known = transport.world_size, transport.rank, 1
    while known < N:
        transport.isend(None, (r + known) % N, f"barrier {known}")
        transport.recv((r - known) % N, f"barrier {known}").release()
        known *= 2


def _combine(op: ReduceOp) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    for one, combine in _COMBINES.items():
        if op == one:
            return combine
    raise NotImplementedError(f"{op} of a process group in virtual time")


def _divide(vector: torch.Tensor, by: int) -> None:
    if vector.is_floating_point():
        vector.div_(by)
    else:
        vector.div_(by, rounding_mode="trunc")
