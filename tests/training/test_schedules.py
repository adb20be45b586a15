"""Learning-rate schedules: by samples, within bounds, and the same for every strategy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.schedules import SCHEDULES, schedule


@given(st.sampled_from(SCHEDULES), st.integers(1, 10**7), st.floats(0, 1), st.floats(0, 2))
def test_a_factor_is_between_0_and_1(kind: str, total: int, warmup: float, done: float) -> None:
    assert 0 <= schedule(kind, total, round(warmup * total))(done * total) <= 1


def test_known_points() -> None:
    assert [schedule("constant", 100, 0)(x) for x in (0, 50, 100)] == [1, 1, 1]
    assert [schedule("step", 100, 0)(x) for x in (0, 49, 50, 75, 99)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert [schedule("cosine", 100, 0)(x) for x in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    assert [schedule("cosine", 110, 10)(x) for x in (0, 5, 10, 60, 110)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    with pytest.raises(ValueError, match="linear"):
        schedule("linear", 1, 0)
