"""The runs of compression: which they are, how their learning rates are found, what is shown of them."""

import json
from pathlib import Path

import pandas as pd
import pytest

from compression.dgc import DGC
from experiments import compression, compression_plots
from experiments.collect import KEPT
from experiments.compression import (
    BY_DENSITY,
    CODED,
    DENSITIES,
    MBIT,
    METHODS,
    MOMENTUM,
    NAMES,
    ON_A_SERVER,
    ONE_PROCESS,
    ONE_WORKER,
    RATES,
    SEEDS,
    TUNED_AT,
    WORKERS,
    Case,
    finals,
    grid,
    last_epochs,
    so_far,
    tuned,
)
from records.errors import UsageError
from records.tables import COLUMNS, aligned
from strategies.asynchronous_server.dgs import DGS
from strategies.single import Single

SHARED = compression.common(quick=True, data_dir="data")
TIMED = {"step": {"forward": 0.001, "backward": 0.002}, "topk": {"encode": 0.003, "decode": 0.001},
         "DGS": {"encode": 0.003, "decode": 0.001}}  # fmt: skip


@pytest.mark.parametrize("file", NAMES)
def test_each_has_the_same_grid_and_its_best_rate(file: str) -> None:
    cases = grid(file, quick=False)
    for name in NAMES[file]:
        assert [case.lr for case in cases if case.name == name] == list(RATES)
    assert {case.seed for case in cases}.isdisjoint(SEEDS)
    assert {case.workers for case in cases if case.name != ONE_WORKER} == {TUNED_AT}
    ends = {RATES[1]: 0.8, RATES[2]: 0.8, RATES[3]: float("nan")}
    rows = pd.DataFrame(
        {**vars(case), "epoch": epoch, "accuracy": ends.get(case.lr, 0.7) if epoch == 2 else 1 - case.lr}
        for case in cases for epoch in (1, 2)
    )  # fmt: skip
    assert set(tuned(rows)) == set(NAMES[file])
    assert set(tuned(rows).values()) == {RATES[1]}, "of equal ones the smaller; what diverged is never the best"


@pytest.mark.parametrize("file", NAMES)
def test_the_runs_differ_in_what_is_asked_only(file: str) -> None:
    cases = finals(file, dict.fromkeys(NAMES[file], 0.1), quick=False)
    assert len(cases) == len(set(cases))
    final = [case for case in cases if case.question == "final"]
    assert len(final) == len([name for name in NAMES[file] if name != ONE_WORKER]) * len(WORKERS) * len(SEEDS) + len(
        [name for name in NAMES[file] if name == ONE_WORKER]
    ) * len(SEEDS)
    assert {case.mbit for case in cases} == set(MBIT)
    for case in cases:
        options = case.options(SHARED)
        assert isinstance(options.strategy, Single) == (case.name in (ONE_PROCESS, ONE_WORKER))
        workers = options.strategy.count_workers(options.n_gpus or 0)
        assert workers == case.workers
        assert options.momentum == (0.0 if case.name in ("ASGD", "GD") else MOMENTUM)
        chooses = options.strategy if isinstance(options.strategy, DGS) else options.codec
        assert getattr(chooses, "density", case.density) == case.density
        assert not isinstance(chooses, DGC) or chooses.warmup_epochs == 0
        assert options.train_size == (SHARED["steps"] * 16 * workers if case.only_timed else SHARED["train_size"])


def test_every_density_is_tried_with_the_methods_that_have_one() -> None:
    cases = finals(METHODS, dict.fromkeys(NAMES[METHODS], 0.1), quick=False)
    for name in BY_DENSITY:
        shares = {case.density for case in cases if case.name == name and case.workers == TUNED_AT}
        assert shares == set(DENSITIES)


@pytest.mark.parametrize("name", ["topk", "DGS"])
def test_coding_takes_its_time(name: str) -> None:
    case = Case("final" if name == "DGS" else "time", name, 2, 0.01)
    (row,) = compression._run(case, SHARED, TIMED).to_dict("records")
    decodings = 2 if name == "topk" else 1  # the other rank's too
    assert row["coded"] / row["steps"] == pytest.approx(0.003 + 0.001 * decodings, rel=0.15)
    free = compression._run(case, SHARED, {"step": TIMED["step"]})
    assert free["coded"].item() == 0
    assert free["seconds"].item() < row["seconds"]


def test_a_synchronous_run_learns_the_same_at_every_bandwidth_and_without_loss_as_without_a_codec() -> None:
    ends = {
        (name, mbit): compression._run(Case("final", name, 2, 0.03, mbit), SHARED, TIMED)["accuracy"].item()
        for name, mbit in (("topk", 100), ("topk", 10_000), ("none", 100), ("blosc", 10_000))
    }
    assert ends["topk", 100] == ends["topk", 10_000]
    assert ends["none", 100] == ends["blosc", 10_000]


def test_a_run_that_diverges_has_no_accuracy() -> None:
    rows = compression._run(Case("grid", "none", 2, 1e30), SHARED, TIMED)
    assert "accuracy" not in rows
    assert rows["lr"].item() == 1e30


def test_what_there_was_at_the_end_of_each_epoch() -> None:
    def row(rank: int, epoch: int, **more: float) -> dict[str, object]:
        role = "worker" if rank else "server"
        return dict.fromkeys(COLUMNS, float("nan")) | {"rank": rank, "epoch": epoch, "role": role, **more}

    rows = []
    for epoch in (1, 2):
        rows.append(row(0, epoch, test_accuracy=epoch / 10, epoch_s=2.0, bytes_sent=1e6, staleness_mean=epoch))
        rows += [
            row(k, epoch, samples=160, epoch_s=1.9, forward_s=k, compress_s=2 * k, bytes_sent=2e6, value_bytes=5e5)
            for k in (1, 2)
        ]
    first, second = so_far(pd.DataFrame(rows), workers=2).to_dict("records")
    assert (first["steps"], second["steps"]) == (10, 20)
    assert (first["accuracy"], second["accuracy"]) == (0.1, 0.2)
    assert (first["seconds"], second["seconds"]) == (2, 4)
    assert (first["computed"], second["computed"]) == (1.5, 3)
    assert (first["coded"], second["coded"]) == (3, 6)
    assert (first["mb"], second["mb"]) == (5, 10)
    assert (first["code_mb"], second["code_mb"]) == (1, 2)
    assert (first["staleness"], second["staleness"]) == (1, 2), "that of the epoch"


@pytest.mark.slow
def test_quick_runs_can_be_made_and_shown(tmp_path: Path) -> None:
    for file in NAMES:
        compression.record(tmp_path / file, quick=True)
    assert {path.name for path in tmp_path.iterdir()} == {METHODS, CODED, "dgs.json", "compression.json"}
    facts = json.loads((tmp_path / "compression.json").read_text())
    assert facts["phase_seconds"]["topk"]["encode"] > 0
    assert json.loads((tmp_path / "dgs.json").read_text())["phase_seconds"]["DGS"]["encode"] > 0
    made = compression.load(tmp_path)
    assert set(made.methods["question"]) == {"grid", "final", "bandwidth", "density"}
    assert set(made.codecs["question"]) == {"grid", "final", "time", "server"}
    for file in NAMES:
        assert set(made.of(file, "final")["name"]) == set(NAMES[file])
        compression_plots.curves(made, file).canvas.draw()
    for draw in (compression_plots.summary, compression_plots.density):
        draw(made).canvas.draw()
    for table in (
        compression_plots.methods_table(made.methods), compression_plots.codecs_table(made),
        compression_plots.times_table(made), compression_plots.times_table(made, "server"),
        compression_plots.density_table(made), compression_plots.grid_table(made),
    ):  # fmt: skip
        assert "nan" not in aligned(table, left=1)
    for say in (
        compression_plots.says_methods, compression_plots.says_times, compression_plots.says_lossless,
        compression_plots.says_accuracy, compression_plots.says_density,
    ):  # fmt: skip
        assert "nan" not in say(made)
    assert "digits" in compression.provenance(made)
    assert compression.missing(tmp_path) == [METHODS, CODED]
    ms = compression_plots.steps_of(made)
    assert (ms["network"] > 0).all()
    rows = compression_plots.at(made, CODED, 100, 2).set_index("name")
    wanted = ms.loc[("topk", 2, 100), "all"] / 1000 * rows.loc["topk", "steps"]
    assert rows.loc["topk", "seconds"] == pytest.approx(wanted)


def test_without_results_it_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"experiments/run.py compression"):
        compression.load(tmp_path)
    assert compression.missing(tmp_path) == [METHODS, CODED]


def test_the_papers_figures_are_those_of_its_methods() -> None:
    table = compression_plots.paper_table()
    assert [row[0] for row in table[1:-1]] == list(ON_A_SERVER)
    assert table[-1][1] == "93.08"


def test_what_is_kept_shows_that_only_both_ways_save_most_bytes_of_a_server() -> None:
    ends = last_epochs(compression.load(KEPT).of(METHODS, "final"))
    mean = ends[ends["workers"] == max(WORKERS)].groupby("name")[["mb", "seconds"]].mean()
    assert mean.loc["GD", "mb"] > 0.4 * mean.loc["ASGD", "mb"]
    assert mean.loc["DGS", "mb"] < 0.1 * mean.loc["ASGD", "mb"]
    assert mean.loc["DGS", "seconds"] < 0.5 * mean.loc["GD", "seconds"]


def test_what_is_kept_shows_that_without_loss_two_ranks_learn_the_same_and_that_coding_is_a_wall() -> None:
    results = compression.load(KEPT)
    final = results.of(CODED, "final").set_index(["workers", "name", "seed", "epoch"]).sort_index()["accuracy"]
    assert final[2, "blosc"].equals(final[2, "none"]), "two are added alike in any order"
    ms = compression_plots.steps_of(results)["all"].unstack("mbit")
    ms = ms.xs(TUNED_AT, level="workers")
    assert ms.loc["qsgd", 10_000] > ms.loc["none", 10_000]
    assert ms.loc["topk", 100] < ms.loc["none", 100] / 4
