"""Recorded versions: how stale gradients were, which came too late, what was read while it changed."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from gradwire.core.records.events import CODE_MARKS, METERS
from gradwire.core.records.files import write_run
from gradwire.core.records.recorder import Recorder
from gradwire.core.records.tables import EVALUATE_BYTES, VERSION_COLUMNS, epoch_table, ledger, summary
from gradwire.pictures import compare
from gradwire.pictures.staleness import histogram, main, picture, text
from gradwire.results import load_events, load_table

ROLES = ["server", "worker", "worker"]
Gradient = tuple[int, int, int, bool]  # epoch, worker, staleness, whether it came too late


def served(gradients: list[Gradient], epochs: int = 2) -> pd.DataFrame:
    """The events of a server and two workers."""
    server, *_ = recorders = [Recorder(rank) for rank in range(3)]
    for version, (epoch, worker, staleness, late) in enumerate(gradients):
        server.epoch = epoch
        phase, op = ("communicate", "drop") if late else ("update", "")
        at = 1.0 + version
        server.add(phase, at, at, op, peer=worker, version_read=version, version_applied=version + staleness)
    for recorder in recorders:
        recorder.add("wait", 0.0, 1.0, peer=0)
        for recorder.epoch in range(1, epochs + 1):
            recorder.mark("epoch_s", 2.0)
            if recorder.rank:
                recorder.mark("samples", 10.0)
    return pd.concat([recorder.frame() for recorder in recorders], ignore_index=True)


def table_of(events: pd.DataFrame) -> pd.DataFrame:
    return epoch_table(events, "async_param_server", 3, ROLES)


SOME: list[Gradient] = [(1, 1, 0, False), (1, 1, 2, False), (1, 2, 7, False), (1, 2, 9, True), (2, 1, 1, False)]


def test_versions_stand_on_the_row_of_the_rank_that_applied() -> None:
    table = table_of(served(SOME, epochs=3)).set_index(["epoch", "rank"])[list(VERSION_COLUMNS)]
    assert table.loc[(1, 0)].tolist() == [1, 3.0, 7.0]
    assert table.loc[(2, 0)].tolist() == [0, 1.0, 1.0]
    assert table.drop([(1, 0), (2, 0)]).isna().all(axis=None)
    assert table.dtypes.astype(str).tolist() == ["Int64", "float64", "float64"]


@pytest.mark.parametrize(("top", "bars"), [(39, 40), (40, 21)])
def test_the_picture_has_one_panel_a_worker_with_all_its_gradients(top: int, bars: int) -> None:
    events = served([(1, 1, 0, False), (1, 1, top, False), (1, 2, top, True)])
    figure = picture(events, {"strategy": "any", "options": {}})
    figure.canvas.draw()
    first, second = figure.axes
    for panel in (first, second):
        heights = [bar.get_height() for bar in panel.patches if isinstance(bar, Rectangle)]
        assert len(heights) == 2 * bars
        assert sum(heights) == pytest.approx(1)
        assert panel.get_xlabel() == "staleness (versions)"
        assert panel.get_xlim() == first.get_xlim()
    assert first.get_ylabel() == "share of gradients"
    assert [panel.get_title() for panel in figure.axes] == ["rank 1: 2 applied", "rank 2: 0 applied, 1 dropped"]
    (legend,) = figure.legends
    assert all(legend.get_window_extent().y1 <= panel.get_window_extent().y0 for panel in figure.axes)


def test_a_table_from_before_there_were_versions_or_codes_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path, "run", served(SOME), table_of(served(SOME)), {})["table"]
    whole = pd.read_csv(path).drop(columns=EVALUATE_BYTES)
    expected = table_of(served(SOME)).assign(**{EVALUATE_BYTES: pd.array([pd.NA] * len(whole), "Int64")})
    for late in ((), METERS, (*CODE_MARKS, *METERS)):
        whole.drop(columns=list(late)).to_csv(path, index=False)
        pd.testing.assert_frame_equal(load_table(path), expected)
    whole.drop(columns=[*VERSION_COLUMNS, *CODE_MARKS, *METERS]).to_csv(path, index=False)
    older = load_table(path)
    expected = expected.assign(dropped=pd.NA, staleness_mean=float("nan"), staleness_max=float("nan"))
    pd.testing.assert_frame_equal(older, expected.astype(older.dtypes))
    assert "staleness" not in summary(older, {})
    for other in (whole[whole.columns[::-1]], whole.drop(columns="wait_s"), whole.assign(more=1)):
        other.to_csv(path, index=False)
        with pytest.raises(ValueError, match="columns"):
            load_table(path)


def test_summary_and_table_have_a_line_only_for_what_happened_and_a_read_is_a_message() -> None:
    assert "at most 7 versions a push\n" in summary(table_of(served(SOME)), {}, "push")
    assert text(served(SOME), {"staleness_of": "push"}).startswith("worker  pushes applied  dropped")
    said = summary(table_of(served(SOME)), {})
    assert "\ndropped        1 gradients\n" in said
    assert "\nstaleness      mean 2.0, at most 7 versions a gradient\n" in said, "the mean of the epochs' 3 and 1"
    fresh = summary(table_of(served([(1, 1, 0, False)])), {})
    assert "staleness" not in fresh
    assert "dropped" not in fresh
    assert "reads" not in text(served(SOME), {})
    reader = Recorder(2)
    reader.epoch = 1
    for k, versions in enumerate((0, 3, 0, 1)):
        reader.add("communicate", k, k + 0.25, "read", 0, "x", 100, version_read=k, version_applied=k + versions)
    events = pd.concat([served(SOME), reader.frame()], ignore_index=True)
    table = table_of(events).set_index(["epoch", "rank"])
    assert table.loc[(1, 2), ["bytes_sent", "bytes_received", "communicate_s"]].tolist() == [0, 400, 1.0]
    assert table.loc[(1, 0), ["bytes_sent", "bytes_received", "messages_sent"]].tolist() == [400, 0, 4]
    assert list(ledger(events).itertuples(index=False, name=None)) == [(0, 2, 4, 400)], "what is dropped is none"
    assert [line.split() for line in text(events, {}).splitlines()[1:4]] == [
        ["1", "3", "0", "1.00", "2", "0", "-", "-"],
        ["2", "1", "1", "7.00", "7", "4", "50.0", "3"],
        ["all", "4", "1", "2.50", "7", "4", "50.0", "3"],
    ]


def test_an_asynchronous_run(own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = own / "async_param_server.1"
    assert main([f"{run}.csv"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert f"picture        {run}.staleness.png\n" in said.out
    height, width, _ = imread(f"{run}.staleness.png").shape
    assert (width, 200 < height < 600) == (900, True)
    events, table = load_events(run), load_table(f"{run}.csv")
    counts = histogram(events)
    pushed = events[(events["op"] == "recv") & (events["tag"] == "gradient")].groupby("peer").size()
    assert (counts.groupby("worker")["count"].sum() == pushed).all(), "an epoch ends with what is under way"
    assert table["staleness_max"].max() == counts["staleness"].max() > 0
    monkeypatch.setenv("COLUMNS", "250")
    assert compare.main([f"{run}.csv", str(own / "param_server.1.json"), str(own / "silent.json")]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    end = header.index("staleness") + len("staleness")
    assert [line[:end].split("  ")[-1].strip() for line in lines[:3]] == [
        f"{table['staleness_mean'].mean():.1f}, {table['staleness_max'].max():.0f}", "0.0, 0", "-",
    ]  # fmt: skip
