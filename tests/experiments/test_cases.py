"""What is declared: comparisons are fair, all rates are tried with all, and the best is taken."""

from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd
import pytest

from experiments import cases
from experiments.cases import COMPARED, FAMILY, FAMILY_SERVERS, GRID, SEEDS, Comparison, Family, Setup
from experiments.measured import WHOLE
from experiments.real import BUILTIN, TIMELINE, TUNING
from experiments.simulated import BITS, REAL, VIRTUAL, Rates, Rows
from experiments.text_cases import SELDOM, SGD_RATE, TEXT
from experiments.virtual_cases import ALIKE
from gradwire import Options
from gradwire.core.training.checks import resolve
from gradwire.networks.units import PAYLOAD
from strategies import STRATEGIES, RunSize
from tests.experiments.samples import SIMULATED, rows_of

RUNS = {str(final.run_name): final for name in COMPARED for final in Comparison(name).finals(None)}
COMMON = {"data_dir": "data", "model": "mlp", "dataset": "digits", "train_size": 320, "epochs": 1}


def _options_of(setup: Setup) -> Options:
    wanted = asdict(setup) | {"model": cases.MODELS[setup.model], "seed": 0}
    runs = [run for run in RUNS.values() if wanted.items() <= run.recorded().items()]
    (run,) = (run for run in runs if not str(run.run_name).startswith(TIMELINE))
    return run


def test_both_sides_of_a_comparison_have_the_same_seeds_workers_batches_and_all_else() -> None:
    seeds: dict[str, list[int]] = {}
    for name, run in RUNS.items():
        assert (run.lr, run.momentum, run.optimizer, run.dataset) == (0.02, 0.9, "sgd", "fashion_mnist")
        assert run.strategy.name in (*BUILTIN, *STRATEGIES)
        if not name.startswith(TIMELINE):
            seeds.setdefault(name.rpartition("-s")[0], []).append(run.seed)
    assert all(found == list(SEEDS) for found in seeds.values())
    quick = {final.run_name for name in COMPARED for final in Comparison(name, quick=True).finals(None)}
    assert not set(RUNS) & quick, "a quick run is never taken for a long one"
    for setup in (*cases.TABLE, *cases.STRONG_2, *cases.SERVERS, *cases.TRAFFIC, *cases.FIRST_TRY):
        _options_of(setup)  # whatever is shown is declared
    pairs = [pair for shown in (cases.SERVER, cases.RING) for pair in shown.values()]
    for ours, built_in in [(pair[i], pair[i + 1]) for pair in pairs for i in range(0, len(pair), 2)]:
        assert built_in.strategy == f"{ours.strategy}_builtin"
        assert resolve(_options_of(ours)).plan(60_000) == resolve(_options_of(built_in)).plan(60_000)
        assert _options_of(ours).epochs == _options_of(built_in).epochs
    for setup in (*cases.STRONG, *cases.WEAK):
        plan = resolve(_options_of(setup)).plan(60_000)
        assert plan.global_batch_size in (cases.BATCH, plan.workers * cases.BATCH // 2)
    assert {setup.workers for setup in cases.STRONG_2[1:]} == {2}


def test_all_servers_share_one_grid_and_all_else() -> None:
    grid, finals = Family(FAMILY).grid()[:-1], Family(FAMILY).finals(dict.fromkeys(FAMILY_SERVERS, 0.1))
    own = ("strategy", "lr", "seed", "slow", "events", "epochs", "train_size", "run_name", "codec")
    shared = [field.name for field in fields(Options) if field.name not in own]
    assert len({str([getattr(run, name) for name in shared]) for run in (*grid, *finals)}) == 1
    assert {run.strategy.count_workers(run.n_gpus or 0) for run in (*grid, *finals)} == {3}
    assert {run.seed for run in grid}.isdisjoint(SEEDS)
    for server, strategy in FAMILY_SERVERS.items():
        mine = [run for run in grid if f"-{server}-" in str(run.run_name)]
        assert [run.lr for run in mine] == list(GRID)
        assert len({(run.epochs, run.train_size) for run in mine}) == 1
        for part, slow in cases.SLOW.items():
            compared = [final for final in finals if str(final.run_name).startswith(f"{part}-{server}-")]
            if part in cases.OF_ALL or server in cases.SYNCHRONOUS:
                assert [run.seed for run in compared] == list(SEEDS)
            assert {(run.slow, run.lr, run.strategy == strategy) for run in compared} <= {(slow, 0.1, True)}
    names = [str(run.run_name) for run in (*grid, *finals, *Family(FAMILY, quick=True).grid())]
    assert len(names) == len(set(names))
    assert all(name.startswith(TUNING) for name in names[: len(grid)])


def test_each_server_gets_its_best_rate_with_a_margin_below_where_it_diverges() -> None:
    rows = [(server, lr, 100, 0.8 + i / 100) for server in FAMILY_SERVERS for i, lr in enumerate(GRID)]
    grid = pd.DataFrame(rows, columns=["server", "lr", "seed", "accuracy"])
    assert set(cases.tuned(grid).values()) == {GRID[-2]}, "of the last it is not known how near the edge is"
    grid.loc[(grid["server"] == "async") & (grid["lr"] >= 0.2), "accuracy"] = float("nan")
    grid.loc[(grid["server"] == "downpour") & (grid["lr"] == 0.4), "accuracy"] = 0.1
    grid.loc[(grid["server"] == "sync") & (grid["lr"] == 0.05), "accuracy"] = 0.9
    grid.loc[grid["server"] == "bounded", "accuracy"] = float("nan")
    assert cases.tuned(grid) == {"sync": 0.05, "backup": 0.2, "bounded": GRID[0], "async": 0.05, "downpour": 0.1}


# In virtual time


def _rates(name: str) -> Rates:
    found = {(case.where, case.name, case.workers): 0.1 for case in SIMULATED[name].grid()}
    return found | {(where, other, n): 0.1 for where, like, n in found if like == "server" for other in ALIKE}


@pytest.mark.parametrize("name", SIMULATED)
def test_all_have_the_same_grid_and_their_best_rate(name: str, tmp_path: Path) -> None:
    experiment, by_run = SIMULATED[name], dict[tuple[str, str, int], list[float]]()
    grid, rates = experiment.grid(), experiment.rates
    for case in grid:
        by_run.setdefault((case.where, case.name, case.workers), []).append(case.lr)
    assert all(found == list(rates) for found in by_run.values())
    assert {case.question for case in grid} == {"grid"}
    assert {case.seed for case in grid}.isdisjoint(case.seed for case in experiment.finals(_rates(name)))
    ends, kept = {rates[1]: 0.8, rates[2]: 0.8, rates[-1]: None}, Rows(tmp_path, name)
    kept.table = pd.concat([rows_of(case, 2, ends.get(case.lr, 0.7)) for case in grid], ignore_index=True)
    kept.table["accuracy"] = kept.table["accuracy"].where(kept.table["epoch"] == 2, 1 - kept.table["lr"])
    if name in (TEXT, SELDOM):
        kept.table[BITS] = -kept.table.pop("accuracy").astype(float)
    tuned = experiment.tuned(kept)
    assert set(tuned.values()) == {rates[1]}, "at the end; of equal ones the smaller; what diverged is never the best"
    assert set(by_run) <= set(tuned)


@pytest.mark.parametrize("name", SIMULATED)
def test_the_runs_differ_in_what_is_asked_only(name: str) -> None:
    experiment, shared = SIMULATED[name], set[str]()
    finals = experiment.finals(_rates(name))
    assert len(finals) == len(set(finals))
    for case in (*experiment.grid(), *finals):
        options = experiment.options(case, COMMON)
        workers = options.strategy.count_workers(options.n_gpus or 0)
        assert (options.n_gpus if case.where == REAL else workers) == case.workers
        by_sgd = name == TEXT and options.optimizer == "sgd"
        assert (options.lr, options.seed) == (case.lr * (SGD_RATE if by_sgd else 1), case.seed)
        assert by_sgd == (name == TEXT and case.name == "DGS")
        if case.where == VIRTUAL:
            assert bool(options.slow) == (case.slow or (name == WHOLE and case.question == "slow"))
            assert options.link is not None
            assert options.link.bandwidth == pytest.approx(case.gbit * 1.25e8 * PAYLOAD)
            alike = (options.batch_size, options.jitter, options.latency, options.model, options.lr_schedule)
            of_its_own = by_sgd or (name == SELDOM and case.name in ("DeMo", "MuLoCo"))
            shared.add(str((alike, "adamw" if of_its_own else options.optimizer)))
        trained = len(options.strategy.roles(options.n_gpus or 0))
        options.strategy.check(RunSize(trained, workers, 12, shared_memory=case.where == REAL))
    assert len(shared) == 1
