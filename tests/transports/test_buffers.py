"""Vectors that are used again: none has two users, and few are kept."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from transports.buffers import _KEPT, Buffers

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.bool])


@given(st.lists(st.tuples(st.integers(0, 3), DTYPES, st.booleans())))
def test_no_vector_has_two_users_and_few_are_kept(steps: list[tuple[int, torch.dtype, bool]]) -> None:
    buffers = Buffers()
    used: list[torch.Tensor] = []
    for numel, dtype, gives_back in steps:
        taken = buffers.take(numel, dtype)
        assert (taken.numel(), taken.dtype) == (numel, dtype)
        assert all(taken is not one for one in used)
        used.append(taken)
        if gives_back:
            buffers.give_back(used.pop(0))
        assert sum(len(free) for free in buffers._free.values()) <= _KEPT
