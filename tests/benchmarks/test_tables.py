"""The tables that benchmarks keep: each is what its code finds, even if it was interrupted, and what its page says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import async_local_sgd, bandwidths, codec_defaults, dgs_speedup, goodput, winners
from benchmarks.goodput import EVERY, FRAGMENTS, REPAIRS, SECONDS
from benchmarks.winners import PLACES
from experiments.grid import Grid, Row, Table
from gradwire.compression import CODECS
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.virtual_time.network import Racks
from tests.selection import by_default

Chooses = Callable[[Row], bool]
TABLES: dict[str, tuple[Grid, Chooses]] = {  # and which cases are made again
    "winners": (winners.RUNS, lambda row: row["ranks"] in (3, 8) and row["bytes"] == 2**17),
    "bandwidths": (bandwidths.RUNS, lambda row: row == bandwidths.CASES[0]),
    "goodput": (goodput.RUNS, lambda row: tuple(row.values()) == (REPAIRS[-1], 4)),
    "async_local_sgd": (async_local_sgd.RUNS, lambda row: row == async_local_sgd.POINTS[-12]),
    "codec_defaults": (codec_defaults.RUNS, lambda row: row == codec_defaults.CASES[0]),
    "dgs_speedup": (dgs_speedup.RUNS, lambda row: row["workers"] == 1 and row["bandwidth"] == "1gbit"),
}
KEPT = {name: pd.read_csv(runs.out, keep_default_na=False, na_values=[""]) for name, (runs, _) in TABLES.items()}


@pytest.mark.parametrize("name", TABLES)
def test_a_kept_table_has_a_row_for_each_case_of_its_grid(name: str) -> None:
    cases = TABLES[name][0].cases
    kept = KEPT[name][[*cases[0]]].drop_duplicates()
    both = kept.merge(pd.DataFrame(cases), "outer", indicator=True)
    assert (both["_merge"] == "both").all(), both[both["_merge"] != "both"]


@pytest.mark.parametrize("name", by_default(("winners", "bandwidths"), TABLES))
def test_a_table_that_was_interrupted_becomes_the_kept_one(name: str, tmp_path: Path) -> None:
    runs, is_chosen = TABLES[name]
    cases, kept, keys, shown = runs.cases, KEPT[name], list(runs.cases[0]), list[pd.DataFrame]()
    chosen = pd.DataFrame([case for case in cases if is_chosen(case)])
    lacks = kept[keys].merge(chosen, "left", indicator=True)["_merge"] == "both"
    assert 0 < lacks.sum() < len(kept)
    made, out = list[dict[str, Any]](), tmp_path / "kept.csv"
    Table(out, keys, runs.options).append(kept[~lacks])

    def make(**case: Any) -> Any:
        made.append(case)
        return runs.make(**case)

    replace(runs, out=out, make=make, show=shown.append).complete()
    assert made == [case for case in cases if is_chosen(case)]
    again, kept = (rows.sort_values([*keys, *kept.columns[4:5]], ignore_index=True) for rows in (*shown, kept))
    pd.testing.assert_frame_equal(again, kept, check_dtype=False, rtol=0.01)


def test_what_ends_early_is_kept_and_goes_on(tmp_path: Path) -> None:
    made, errors = list[int](), [RunFailed("once"), KeyboardInterrupt()]

    def make(case: int) -> dict[str, int]:
        made.append(case)
        if case % 3 == 1 and errors:
            raise errors.pop()
        return {"case": case, "found": 10 * case}

    def fill(**options: Any) -> list[int]:
        made.clear()
        shown = list[pd.DataFrame]()
        Grid(tmp_path / "x.csv", [{"case": i} for i in range(6)], make, shown.append, options).complete()
        return sorted(shown[0]["found"])

    with pytest.raises(KeyboardInterrupt):
        fill()
    with pytest.raises(RunFailed, match="1 of 5 runs failed: 1"):
        fill()
    assert made == [1, 2, 3, 4, 5]
    with pytest.raises(UsageError, match="made with other options; delete it"):
        fill(steps=3)
    assert (fill(), made) == ([0, 10, 20, 30, 40, 50], [1])
    assert (fill(), made) == ([0, 10, 20, 30, 40, 50], [])
    assert {path.name for path in tmp_path.iterdir()} == {"x.csv", "x.json"}
    (tmp_path / "x.json").unlink()
    assert fill() == [0, 10, 20, 30, 40, 50], "a table without facts, as was once kept"
    (tmp_path / "x.csv").write_text("case,found\n1,10\n")
    with pytest.raises(UsageError, match=r"another .*cpu.*; delete it"):
        fill()


def test_pictures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders = [*winners.borders(FLAT, [16])]
    chosen = [winners.choose(winners.network_of(FLAT, 16), at * by) for _, at in borders for by in (0.9, 1.1)]
    assert chosen == ["all_gather", *["recursive_doubling"] * 2, "halving_doubling"]
    of = KEPT["winners"].query("network == @FLAT and ranks == 16")
    winners.draw(of, tmp_path / "winners.png")
    monkeypatch.setattr(bandwidths, "PICTURE", tmp_path / "bandwidths.png")
    bandwidths.show(KEPT["bandwidths"])
    monkeypatch.setattr(dgs_speedup, "PICTURE", tmp_path / "dgs.png")
    dgs_speedup.show(KEPT["dgs_speedup"])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 3


# Which all-reduce is the fastest

FLAT, _, RACKS = PLACES
EXACT = "all_gather", "naive_all_reduce", "ring_all_reduce", "hierarchical_ring"
POWERS_OF_TWO = "recursive_doubling", "halving_doubling", "swing"


def test_the_closed_forms_choose_the_fastest_nearly_everywhere() -> None:
    kept = KEPT["winners"]
    is_wrong = winners.missed(kept)
    assert ((~is_wrong).groupby(kept["network"]).mean() >= 0.9).all()
    assert len(winners.summary(kept).splitlines()) == len(PLACES) + is_wrong.sum()


@pytest.mark.parametrize("N", [8, 12, 32])
@pytest.mark.parametrize("nbytes", [256, 2**21])
def test_on_racks_the_time_is_that_of_the_closed_form(N: int, nbytes: int) -> None:
    racks = winners.network_of(RACKS, N)
    assert isinstance(racks, Racks)
    for uplink in (1.0, 0.25):  # of a card
        racks.rack_bandwidth = uplink * racks.bandwidth
        for reduce in winners.all_reduces(racks, nbytes):
            if reduce.name in EXACT or (reduce.name in POWERS_OF_TWO and N != 12):
                most = 0.06 if reduce.name == "swing" else 0.005
                assert winners.simulate(reduce, racks, nbytes) == pytest.approx(
                    winners.predict_all_reduce(reduce, racks, nbytes), rel=most
                )


# Which bandwidth is enough


def test_a_level_has_the_first_bandwidth_that_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[int]:
        return bandwidths.notches(bandwidths.SETTINGS["fitted"], "1B", "DiLoCo")

    monkeypatch.setattr(bandwidths, "utilisation", lambda *of: 100 * min(1.0, of[3] / 500))
    assert found() == [int((5 * level > bandwidths.BANDWIDTHS).sum()) for level in bandwidths.LEVELS]
    monkeypatch.setattr(bandwidths, "utilisation", lambda *of: 70.0)
    assert found() == [0, *[len(bandwidths.BANDWIDTHS)] * 4], "none reaches the others"


@pytest.mark.parametrize("method", ["DiLoCo", "4 bits"])
def test_a_kept_bandwidth_is_the_first_that_is_enough(method: str) -> None:
    kept = KEPT["bandwidths"].query("setting == 'fitted' and model == '1B' and percent == 90").set_index("method")
    fitted, at = bandwidths.SETTINGS["fitted"], int(np.abs(bandwidths.BANDWIDTHS - kept["gbit"][method]).argmin())
    below, enough = (bandwidths.utilisation(fitted, "1B", method, bandwidths.BANDWIDTHS[i]) for i in (at - 1, at))
    assert below < 90 <= enough


# Who does not wait


@pytest.mark.parametrize(
    ("deaths", "lost"),
    [
        ((), 0.0),
        ((EVERY * FRAGMENTS + 5.0,), 5.0 + 10.0),  # what is not in the checkpoint, and the repair
        ((5.0, 9.0), 5.0 + 14.0),  # both are repaired, the second 4 s later
        ((5.0, 15.0 + EVERY * FRAGMENTS), 5.0 + 10.0 + 10.0),  # a round after the first repair
    ],
)
def test_a_synchronous_run_waits_for_repairs_and_repeats_what_no_checkpoint_has(deaths: Any, lost: float) -> None:
    assert goodput.synchronous(10.0, deaths) == SECONDS + lost


# What a first run with a codec learns


def test_every_codec_learns_by_default_as_a_run_without_one() -> None:
    kept = KEPT["codec_defaults"].query("question == 'defaults'").set_index(["strategy", "codec", "seed"])
    of = kept["accuracy_20"].unstack("codec")
    assert set(of.columns) == {*CODECS}
    worse = (of.rsub(of["none"], axis=0) > 0.03).stack()
    assert worse[worse].empty
