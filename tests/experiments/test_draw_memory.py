"""What is kept of the memory of four strategies, and the figure of it."""

import pandas as pd
import pytest

from media import draw_memory
from media.draw_memory import PANELS, N, load, measure, peaks


def test_each_stage_cuts_one_kind_more() -> None:
    found = peaks(load())
    P = found.loc["ring_all_reduce", "parameters"]
    assert list(found.index) == list(PANELS)
    assert found["peak"].is_monotonic_decreasing
    assert (found.drop(columns="peak").sum(axis=1) == found["peak"]).all()
    state, gradients, parameters = (found[kind] / P for kind in ("optimizer state", "gradients", "parameters"))
    assert state.tolist() == pytest.approx([2, 2 / N, 2 / N, 2 / N], rel=1e-3)
    assert gradients.iloc[:2].tolist() == [1, 1]
    assert gradients.iloc[2:].between(1 / N, 0.5).all()
    assert parameters.tolist() == [1, 1, 1, 1 / N]


def test_what_goes_has_come() -> None:
    for (name, kind), of in load().groupby(["strategy", "kind"]):
        assert of["bytes"].cumsum().min() >= 0, (name, kind)


def test_the_figure_has_the_peaks_that_are_told() -> None:
    changes = load()
    figure, found = draw_memory.draw_all(changes), peaks(changes)
    P = found.loc["ring_all_reduce", "parameters"]
    assert [axes.get_title() for axes in figure.axes] == [
        f"{name}: at most {peak / P:.2f} P" for name, peak in found["peak"].items()
    ]


@pytest.mark.end_to_end
def test_what_is_kept_is_measured_again() -> None:
    name = "fully_sharded (ZeRO-3)"
    kept = load()
    for one, other in zip(_parts(measure(name)), _parts(kept[kept["strategy"] == name]), strict=True):
        pd.testing.assert_frame_equal(one, other)


def _parts(changes: pd.DataFrame) -> list[pd.DataFrame]:
    """Return what there was before the step, which has no order, and the changes in it."""
    before = changes["phase"] == ""
    parts = (changes[before].sort_values("kind"), changes[~before])
    return [part.reset_index(drop=True) for part in parts]
