"""Vectors without elements: a run with them is that with torch's own meta tensors, to the last digit."""

import pytest
import torch

from gradwire.virtual_time.vectors import hollow


def test_what_does_not_fit_is_torchs_error() -> None:
    vector = hollow(3, torch.float32)
    for wrong in (hollow(4, torch.float32), torch.zeros(4, device="meta")):
        for method in ("add_", "sub_", "mul_", "div_", "copy_"):
            with pytest.raises(RuntimeError, match=r"shape|size|expand"):
                getattr(vector, method)(wrong)
    assert vector.copy_(hollow(3, torch.float64)).dtype == torch.float32
    assert vector.shape == (3,)
