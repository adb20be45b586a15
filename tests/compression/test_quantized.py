"""QSGD and signs: which values an element can take, its mean, what is kept, and the packing of bits."""

import pytest
import torch

from gradwire.compression import QSGD, Layout, Sign
from gradwire.core.records.errors import RunFailed
from tests.compression.test_all_codecs import MIXED, normal, started

# QSGD


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
