"""QSGD and signs: which values an element can take, its mean, what is kept, and the packing of bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compression import QSGD, Layout, Sign
from gradwire.core.records.errors import RunFailed
from tests.compression.test_all_codecs import DTYPES, LAYOUTS, MIXED, SCOPES, normal, started

LEVELS = st.sampled_from([1, 2, 3, 7, 8, 15, 127, 128, 1000, 32767])


# QSGD


@settings(max_examples=40)
@given(
    layout=LAYOUTS.filter(lambda layout: layout.n > 0),
    levels=LEVELS,
    bucket=st.sampled_from([1, 2, 7, 64, 512]),
    scope=SCOPES,
    dtype=DTYPES,
    scale=st.sampled_from([1.0, 1e-30, 1e-3, 1e30]),
    seed=st.integers(0, 2**63 - 1),
)
def test_an_element_becomes_one_of_its_two_neighbours(
    layout: Layout, levels: int, bucket: int, scope: str, dtype: torch.dtype, scale: float, seed: int
) -> None:
    end = started(QSGD(levels=levels, bucket=bucket), layout, dtype, scope=scope, seed=seed)
    vector = normal(layout, seed, dtype) * scale
    vector[::3] = 0
    decoded = end.decode(end.encode(vector).data)
    parts = (layout if scope == "tensor" else layout.whole).slices
    buckets = [one for part in parts for one in vector[part].split(bucket)]
    norm = torch.cat([one.double().norm().expand(len(one)) for one in buckets]).to(dtype)
    unit = norm.double() / levels
    level = torch.where(norm > 0, decoded / unit, 0)
    assert torch.allclose(level, level.round(), rtol=1e-5, atol=0), "a level, times norm / s"
    exact = torch.where(norm > 0, vector / unit, 0)
    slack = levels * 1e-5  # a norm is rounded
    assert ((level.round() >= (exact - slack).floor()) & (level.round() <= (exact + slack).ceil())).all()
    assert (decoded[norm == 0] == 0).all()
    assert (level.abs() <= levels * (1 + 1e-5)).all()


def test_ranks_and_seeds_and_steps_draw_different_numbers() -> None:
    def code(rank: int, seed: int, step: int = 1) -> bytes:
        end = started(QSGD(), MIXED, rank=rank, seed=seed)
        return [end.encode(normal(MIXED, 0)).data.numpy().tobytes() for _ in range(step)][-1]

    assert len({code(0, 0), code(1, 0), code(0, 1), code(1, 1), code(0, 0, 2)}) == 5
    assert code(1, 1) == code(1, 1)


@pytest.mark.parametrize("levels", [15, 100, 127, 1023])
def test_a_norm_times_all_levels_is_finite_or_refused(levels: int) -> None:
    """Of 100 levels, the largest float divided by 100, times 100, rounds to infinity."""
    layout = Layout(("a",), ((1,),))
    end = started(QSGD(levels=levels), layout)
    try:
        code = end.encode(torch.tensor([torch.finfo(torch.float32).max]))
    except RunFailed as error:
        assert str(error).startswith("the gradient of a has the value inf")  # noqa: PT017 - either is right
    else:
        assert end.decode(code.data).isfinite().all()


# Signs


def test_a_mean_that_is_too_large_is_refused_and_not_kept() -> None:
    end = started(Sign(), MIXED)
    end.encode(normal(MIXED, 0))
    before = end.state_dict()["e"]
    with pytest.raises(RunFailed, match="gradient of w has the value inf"):
        end.encode(torch.full((MIXED.n,), 3e38))
    assert torch.equal(end.state_dict()["e"], before)
