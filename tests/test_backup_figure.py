"""The figure of backup workers: seconds per step from the server's updates, over those of the run made next to it."""

import numpy as np
import pandas as pd
import pytest

from experiments.backup import WITHIN, figure, step_seconds, times
from records.events import Recorder


def served(seconds: float, epochs: int = 2) -> pd.DataFrame:
    """A server that updates five times an epoch, and a worker that counts for nothing."""
    server, worker = Recorder(0), Recorder(1)
    server.add("update", 0.0, 0.0)
    for epoch in range(1, epochs + 1):
        server.epoch = worker.epoch = epoch
        for step in range(5):
            at = 100.0 * epoch + seconds * step
            server.add("update", at - 0.001, at - 0.001, peer=1, version_read=step, version_applied=step)
            server.add("update", at, at + 0.0005)
            worker.add("forward", at, at + 0.1)
    return pd.concat([server.frame(), worker.frame()], ignore_index=True)


def test_a_step_lasts_from_update_to_update_within_an_epoch() -> None:
    assert step_seconds(served(0.5)).tolist() == pytest.approx([0.5] * 8)


def test_ratios_are_of_the_same_turn() -> None:
    table = times({"even": [served(1.0), served(3.0)], "slow": [served(5.0), served(15.0)]})
    assert table.loc["even", "median"] == pytest.approx(2)
    np.testing.assert_allclose(table["ratio"], [1, 5])
    np.testing.assert_allclose(table["ratio_low"], [1, 5])
    assert table["steps"].tolist() == [16, 16]
    with pytest.raises(ValueError, match="as many runs"):
        times({"even": [served(1.0)], "slow": []})


def test_the_figure_names_its_bars_and_the_bound() -> None:
    (axes,) = figure({"even": [served(1.0)], "slow": [served(5.0)]}, "title").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["even", "slow"]
    said = [text.get_text() for text in axes.texts]
    assert said == ["1.00\n(1000 ms)", "5.00\n(5000 ms)", f"{WITHIN:g}"]
    assert "“even” = 1" in axes.get_ylabel()
