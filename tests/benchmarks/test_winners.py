"""Which all-reduce is the fastest: the kept table is what the code finds, the closed forms on racks, and the map."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.draw_winners import draw
from benchmarks.winners import (
    OUT,
    PLACES,
    all_reduces,
    borders,
    choose,
    compare,
    expect,
    missed,
    network,
    simulate,
    summary,
)
from gradwire.virtual_time.network import Racks
from tests.runs import ROOT

KEPT = pd.read_csv(OUT)
FLAT, _, RACKS = PLACES
EXACT = "all_gather", "naive_all_reduce", "ring_all_reduce", "hierarchical_ring"
POWERS_OF_TWO = "recursive_doubling", "halving_doubling", "swing"


@pytest.mark.parametrize("place", PLACES)
def test_the_kept_table_is_what_the_code_finds(place: str) -> None:
    of = KEPT[KEPT["network"] == place]
    assert list(of["ranks"].unique()) == list(PLACES[place][3])
    for kept in of[of["ranks"] <= 12].iloc[::17].to_dict("records"):
        found = compare(place, kept["ranks"], kept["bytes"])
        kept = {name: value for name, value in kept.items() if name in found}
        assert found == pytest.approx(kept, rel=1e-5, abs=1e-9)


def test_the_closed_forms_choose_the_fastest_nearly_everywhere() -> None:
    for place, of in KEPT.groupby("network"):
        assert (~missed(of)).mean() >= (0.9 if place == RACKS else 0.97), place
    wrong, racks = KEPT[missed(KEPT)], KEPT["network"] == RACKS
    assert len(summary(KEPT).splitlines()) == len(PLACES) + len(wrong)
    on_racks = (wrong["network"] == RACKS).sum()
    page = " ".join((ROOT / "docs" / "virtual_time.md").read_text(encoding="utf-8").split())
    assert f"{len(wrong) - on_racks} of {(~racks).sum()} points at one switch" in page
    assert f"{on_racks} of {racks.sum()} on racks, for at most {wrong['slower_percent'].max():.0f} % more time" in page


@pytest.mark.parametrize("N", [8, 12, 16, 20, 32])
@pytest.mark.parametrize("nbytes", [256, 2**14, 2**21])
def test_on_racks_the_time_is_that_of_the_closed_form(N: int, nbytes: int) -> None:
    racks = network(RACKS, N)
    assert isinstance(racks, Racks)
    for uplink in (1.0, 0.25):  # of a card
        racks.rack_bandwidth = uplink * racks.bandwidth
        for one in all_reduces(racks, nbytes):
            if one.name in EXACT or (one.name in POWERS_OF_TWO and N in (8, 16, 32)):
                most = 0.06 if one.name == "swing" else 0.005
                assert simulate(one, racks, nbytes) == pytest.approx(expect(one, racks, nbytes), rel=most), one


def test_the_map_has_the_borders_between_the_choices(tmp_path: Path) -> None:
    nbytes = [at for N, at in borders(FLAT) if N == 16]
    chosen = [choose(network(FLAT, 16), at * by) for at in nbytes for by in (0.9, 1.1)]
    assert chosen == ["all_gather", *["recursive_doubling"] * 2, "halving_doubling"]
    of = KEPT[(KEPT["network"] == FLAT) & (KEPT["ranks"] == 16)]
    draw(of, missed(of), {FLAT: [(16, at) for at in nbytes]}, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
