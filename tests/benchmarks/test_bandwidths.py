"""Which bandwidth is enough: the kept table is what the strategies find, it is near the published one, the picture."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.bandwidths import GRID, LEVELS, METHODS, OUT, SETTINGS, cells, notches, summary, utilisation
from benchmarks.draw_bandwidths import draw
from tests.runs import ROOT

KEPT = pd.read_csv(OUT)
FITTED = KEPT[KEPT["setting"] == "fitted"]


@pytest.mark.parametrize("method", METHODS)
def test_the_kept_table_is_what_the_strategies_find(method: str) -> None:
    (kept,) = FITTED.query(f"model == '1B' and method == '{method}' and percent == 90")["gbit"]
    at = int(np.abs(GRID - kept).argmin())
    just_below, enough = (utilisation(SETTINGS["fitted"], "1B", method, GRID[i]) for i in (at - 1, at))
    assert just_below < 90 <= enough
    assert kept == pytest.approx(GRID[at], rel=1e-3)


def test_a_level_has_the_first_bandwidth_that_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.bandwidths.utilisation", lambda *of: 100 * min(1.0, of[3] / 500))
    found = [*notches(SETTINGS["fitted"], "1B", "DiLoCo")]
    assert found == [int((5 * level > GRID).sum()) for level in LEVELS]
    monkeypatch.setattr("benchmarks.bandwidths.utilisation", lambda *of: 70.0)
    assert [*notches(SETTINGS["fitted"], "1B", "DiLoCo")] == [0, *[len(GRID)] * 4], "none reaches the others"


def test_it_is_near_the_published_table() -> None:
    keys = ["setting", "model", "method", "local_steps"]
    expected = [(*cell[:4], level, gbit) for cell in cells() for level, gbit in zip(LEVELS, cell[4], strict=True)]
    assert [*KEPT[[*keys, "percent", "published_gbit"]].itertuples(index=False, name=None)] == expected
    apart = np.abs(GRID - FITTED["gbit"].to_numpy()[:, None]).argmin(1)
    apart -= np.abs(GRID - FITTED["published_gbit"].to_numpy()[:, None]).argmin(1)
    assert len(apart) == 75
    assert (np.abs(apart) <= 1).sum() >= 68
    page = " ".join((ROOT / "docs" / "low_communication.md").read_text(encoding="utf-8").split())
    assert f"of 75 cells, {(apart == 0).sum()} are the same and {(np.abs(apart) <= 1).sum()} within a step" in page
    misses = sum(line.endswith(" notches") for line in summary(FITTED).splitlines())
    assert misses == (np.abs(apart) > 1).sum()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    draw(FITTED, tmp_path / "bandwidths.png")
    assert (tmp_path / "bandwidths.png").read_bytes().startswith(b"\x89PNG")
