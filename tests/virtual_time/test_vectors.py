"""Vectors without elements: a run with them is that with torch's own meta tensors, to the last digit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.virtual_time.vectors import hollow


@pytest.mark.parametrize("n", [0, 1, 10, 1003])
def test_parts_are_as_long_as_torchs(n: int) -> None:
    vector, of_torch = hollow(n, torch.float32), torch.zeros(n)
    takes: list[Callable[[torch.Tensor], Any]] = [
        lambda v: v.tensor_split(4), lambda v: v.tensor_split([2, 5]), lambda v: [v[2:7]], lambda v: [v[:-3]],
        lambda v: [v[5:2]], lambda v: [v[::2]], lambda v: [v.view(v.shape)], lambda v: [v.view(-1, 1)],
        lambda v: [v.view(torch.uint8)], lambda v: [v.clone()], lambda v: [v.mul_(3)], lambda v: [v.detach()],
    ]  # fmt: skip
    for take in takes:
        found, right = take(vector), take(of_torch)
        assert [(part.shape, part.dtype, part.nbytes) for part in found] == [
            (part.shape, part.dtype, part.nbytes) for part in right
        ]
        assert all(part.is_meta for part in found)


def test_what_does_not_fit_is_torchs_error() -> None:
    vector = hollow(3, torch.float32)
    for wrong in (hollow(4, torch.float32), torch.zeros(4, device="meta")):
        for method in ("add_", "sub_", "mul_", "div_", "copy_"):
            with pytest.raises(RuntimeError, match=r"shape|size|expand"):
                getattr(vector, method)(wrong)
    assert vector.copy_(hollow(3, torch.float64)).dtype == torch.float32
    assert vector.shape == (3,)
