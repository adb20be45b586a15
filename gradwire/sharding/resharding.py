"""The state of a sharded run of N ranks: gathered, and of one rank of a run with another number of them."""

from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch

from gradwire.core.strategy.descent import Descent
from gradwire.sharding.blocks import Block

State = dict[str, Any]


def gathered(ranks: Sequence[State], blocks: Sequence[Block], descent: Descent, packed: bool) -> State:
    """Return rank 0's `state_dict` with the optimizer's state of all `ranks`: of each block [n], or of each tensor.

    `packed`: the optimizer of a rank has slices of one vector, its chunks; else a vector of each block. Tensors: where
    it sees these.
    """
    if ranks[0].get("gathered"):
        return ranks[0]
    N, old = len(ranks), [one["optimizer"]["state"] for one in ranks]
    state: dict[int, State] = {}
    if not descent.is_flat:
        state = {i: of for one in old for i, of in one.items()}
    elif old[0]:
        of_rank = [_of_blocks(one, k, blocks, descent, N, packed) for k, one in enumerate(old)]
        state = {j: _join([of_rank[(c - 1) % N][j] for c in range(N)]) for j in range(len(blocks))}
    return ranks[0] | {"optimizer": ranks[0]["optimizer"] | {"state": state}, "gathered": True}


def part_of(whole: State, blocks: Sequence[Block], descent: Descent, own: int, packed: bool) -> State:
    """Return, of a `gathered` state, that of the rank that owns chunk number `own` of each block and has `descent`."""
    state, groups = whole["optimizer"]["state"], descent.optimizer.state_dict()["param_groups"]
    if not descent.is_flat:
        mine = {id(descent.parameters[i]) for i in descent.own}
        numbered = [id(p) for group in descent.optimizer.param_groups for p in group["params"]]  # as in a state_dict
        state = {i: of for i, of in state.items() if numbered[i] in mine}
    elif state:
        pieces = [
            _part(state[j], block.chunks[own].start - block.part.start, block.chunks[own].stop - block.part.start)
            for j, block in enumerate(blocks)
        ]
        if packed:
            joined, ends = _join(pieces), [0, *accumulate(p.numel() for p in descent.parameters)]
            pieces = [_part(joined, *both) for both in pairwise(ends)]
        state = dict(enumerate(pieces))
    pairs = zip(whole["optimizer"]["param_groups"], groups, strict=True)
    numbers = [group | {"params": own_group["params"]} for group, own_group in pairs]
    return whole | {"optimizer": {"state": state, "param_groups": numbers}}


def _of_blocks(
    state: dict[int, State], rank: int, blocks: Sequence[Block], descent: Descent, N: int, packed: bool
) -> list[State]:
    """Return the states of the chunks that a rank of N had, one of each block."""
    if not packed:
        return [state[j] for j in range(len(blocks))]
    whole, found, start = _join([state[i] for i in sorted(state)]), [], 0
    for block in blocks:
        chunk = descent.parts(N, block.part)[(rank + 1) % N]
        stop = start + chunk.stop - chunk.start
        found.append(_part(whole, start, stop))
        start = stop
    return found


def _part(state: State, start: int, stop: int) -> State:
    return {name: v[start:stop].clone() if _is_vector(v) else deepcopy(v) for name, v in state.items()}


def _join(states: Sequence[State]) -> State:
    return {name: torch.cat([one[name] for one in states]) if _is_vector(v) else v for name, v in states[0].items()}


def _is_vector(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
