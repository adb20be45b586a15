"""The state of a sharded run of N ranks, for one rank of a run with another number of them."""

from collections.abc import Sequence
from copy import deepcopy
from itertools import accumulate, pairwise
from typing import Any

import torch

from strategies.common.blocks import Block
from strategies.common.descent import Descent

State = dict[str, Any]  # of one parameter in a torch optimizer: vectors like it, and numbers


def resharded(
    ranks: Sequence[dict[str, Any]], blocks: Sequence[Block], descent: Descent, own: int, packed: bool
) -> dict[str, Any]:
    """Return the `state_dict` of the rank that owns chunk number `own` of each block; `ranks`: those of all old ranks.

    `packed`: the optimizer has slices of one vector, a rank's chunks; else a vector of each block. Where it sees
    tensors, their states only change hands.
    """
    N, old = len(ranks), [one["optimizer"]["state"] for one in ranks]
    state: dict[int, State] = {}
    if not descent.is_flat:
        mine = {id(descent.parameters[i]) for i in descent.own}
        numbered = [id(p) for group in descent.optimizer.param_groups for p in group["params"]]  # as in a state_dict
        state = {i: of for one in old for i, of in one.items() if numbered[i] in mine}
    elif old[0]:
        of_rank = [_of_blocks(one, k, blocks, descent, N, packed) for k, one in enumerate(old)]
        pieces = []
        for j, block in enumerate(blocks):
            chunk, vector = block.chunks[own], _join([of_rank[(c - 1) % N][j] for c in range(N)])
            pieces.append(_part(vector, chunk.start - block.part.start, chunk.stop - block.part.start))
        if packed:
            whole, ends = _join(pieces), [0, *accumulate(p.numel() for p in descent.parameters)]
            pieces = [_part(whole, *both) for both in pairwise(ends)]
        state = dict(enumerate(pieces))
    own_groups = descent.optimizer.state_dict()["param_groups"]
    groups = [
        group | {"params": mine["params"]}
        for group, mine in zip(ranks[0]["optimizer"]["param_groups"], own_groups, strict=True)
    ]
    return ranks[0] | {"optimizer": {"state": state, "param_groups": groups}}


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
