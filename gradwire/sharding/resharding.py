"""The state of a sharded run of N ranks: gathered, and of one rank of a run with another number of them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch

from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.base import Transport
from gradwire.sharding.blocks import Block

State = dict[str, Any]


def gather_states(state: State, transport: Transport, blocks: Sequence[Block], updater: Updater, packed: bool) -> State:
    """Return on rank 0 its state with the optimizer's state of all ranks, on the others theirs without it and x.

    All ranks call it; `packed`: see `gathered`. Raises PeerLost, WaitTimeout.
    """
    if transport.rank:
        transport.isend(state.pop("optimizer"), 0, "optimizer").wait()
        del state["x"]
        return state
    others = [{"optimizer": transport.recv(k, "optimizer").object} for k in transport.peers]
    return gathered([state, *others], blocks, updater, packed or len(blocks) == 1)


def state_of(
    rank: int, ranks: Sequence[State], blocks: Sequence[Block], updater: Updater, own: int, packed: bool
) -> State:
    """Return the state of a rank, of those of all `ranks` of a run, which may be of another number.

    The rank owns chunk number `own` of each block, and has `updater`. `packed`: see `gathered`.
    """
    packed = packed or len(blocks) == 1
    state = part_of(gathered(ranks, blocks, updater, packed), blocks, updater, own, packed)
    return state | {"b": ranks[rank if rank < len(ranks) else 0]["b"]}


def gathered(ranks: Sequence[State], blocks: Sequence[Block], updater: Updater, packed: bool) -> State:
    """Return rank 0's `state_dict` with the optimizer's state of all `ranks`: of each block [n], or of each tensor.

    `packed`: the optimizer of a rank has slices of one vector, its chunks; else a vector of each block. Tensors: where
    it sees these, or has left some of them out, which had no gradient.
    """
    if ranks[0].get("gathered"):
        return ranks[0]
    N, old = len(ranks), [rank["optimizer"]["state"] for rank in ranks]
    state: dict[int, State] = {}
    by_tensor = any("sizes" in rank["optimizer"] for rank in ranks)
    if by_tensor:
        state = _of_tensors([rank["optimizer"] for rank in ranks], blocks, updater, packed)
    elif not updater.is_flat:
        state = {i: of for rank_state in old for i, of in rank_state.items()}
    elif old[0]:
        of_rank = [_of_blocks(rank_state, k, blocks, updater, N, packed) for k, rank_state in enumerate(old)]
        state = {j: _join([of_rank[(c - 1) % N][j] for c in range(N)]) for j in range(len(blocks))}
    optimizer = {"state": state, "param_groups": ranks[0]["optimizer"]["param_groups"], "by_tensor": by_tensor}
    return ranks[0] | {"optimizer": optimizer, "gathered": True}


def part_of(whole: State, blocks: Sequence[Block], updater: Updater, own: int, packed: bool) -> State:
    """Return, of a `gathered` state, that of the rank that owns chunk number `own` of each block and has `updater`."""
    state = whole["optimizer"]["state"]
    if whole["optimizer"].get("by_tensor"):
        place = [block.chunks[own] for block in blocks], updater.layout.slices
        updater.cut(accumulate(of.stop - of.start for _, of, _, _ in _pieces(updater.sizes, *place)))
        of_tensors, state = state, {}
        for j, _, i, at in _pieces(updater.sizes, *place):
            if i in of_tensors:
                state[j] = _part(of_tensors[i], at.start, at.stop)
    elif not updater.is_flat:
        mine = {id(updater.parameters[i]) for i in updater.own}
        numbered = [id(p) for group in updater.optimizer.param_groups for p in group["params"]]  # as in a state_dict
        state = {i: of for i, of in state.items() if numbered[i] in mine}
    elif state:
        pieces = [
            _part(state[j], block.chunks[own].start - block.part.start, block.chunks[own].stop - block.part.start)
            for j, block in enumerate(blocks)
        ]
        if packed:
            joined, ends = _join(pieces), [0, *accumulate(p.numel() for p in updater.parameters)]
            pieces = [_part(joined, *both) for both in pairwise(ends)]
        state = dict(enumerate(pieces))
    groups = updater.optimizer.state_dict()["param_groups"]
    pairs = zip(whole["optimizer"]["param_groups"], groups, strict=True)
    numbers = [group | {"params": own_group["params"]} for group, own_group in pairs]
    return whole | {"optimizer": {"state": state, "param_groups": numbers}}


def _of_tensors(ranks: Sequence[State], blocks: Sequence[Block], updater: Updater, packed: bool) -> dict[int, State]:
    """Return the state of each tensor that has one, of the optimizers of all ranks."""
    N, found = len(ranks), dict[int, list[State]]()
    for c in range(N):
        optimizer, parts = ranks[(c - 1) % N], [updater.parts(N, block.part)[c] for block in blocks]
        lengths = [part.stop - part.start for part in parts]
        of_states = (
            next((len(v) for v in of.values() if _is_vector(v)), sum(lengths)) for of in optimizer["state"].values()
        )
        sizes = optimizer.get("sizes") or (list(of_states) if packed else lengths)
        for j, where, i, _ in _pieces(sizes, parts, updater.layout.slices):
            if j in optimizer["state"]:
                found.setdefault(i, []).append(_part(optimizer["state"][j], where.start, where.stop))
    return {i: _join(states) for i, states in found.items()}


def _pieces(
    sizes: Sequence[int], parts: Sequence[slice], tensors: Sequence[slice]
) -> Iterator[tuple[int, slice, int, slice]]:
    """Yield each piece of parameters of these sizes, which are parts of x one after the other, that is of one tensor.

    The number of the parameter and where it is in that, the number of the tensor and where it is in that.
    """
    ends, begin = [*accumulate(sizes)], 0
    for part in parts:
        for i, tensor in enumerate(tensors):
            x, stop = max(part.start, tensor.start), min(part.stop, tensor.stop)
            while x < stop:
                at = begin + x - part.start
                j = bisect_right(ends, at)
                n, first = min(stop - x, ends[j] - at), at - ends[j] + sizes[j]
                yield j, slice(first, first + n), i, slice(x - tensor.start, x - tensor.start + n)
                x += n
        begin += part.stop - part.start


def _of_blocks(
    state: dict[int, State], rank: int, blocks: Sequence[Block], updater: Updater, N: int, packed: bool
) -> list[State]:
    """Return the states of the chunks that a rank of N had, one of each block."""
    if not packed:
        return [state[j] for j in range(len(blocks))]
    whole, found, start = _join([state[i] for i in sorted(state)]), [], 0
    for block in blocks:
        chunk = updater.parts(N, block.part)[(rank + 1) % N]
        stop = start + chunk.stop - chunk.start
        found.append(_part(whole, start, stop))
        start = stop
    return found


def _part(state: State, start: int, stop: int) -> State:
    return {name: v[start:stop].clone() if _is_vector(v) else deepcopy(v) for name, v in state.items()}


def _join(states: Sequence[State]) -> State:
    return {name: torch.cat([state[name] for state in states]) if _is_vector(v) else v for name, v in states[0].items()}


def _is_vector(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
