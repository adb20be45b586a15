"""Every strategy, by being in the table, in virtual time: the same bits as in real processes, every time the same."""

from pathlib import Path
from typing import Any

from records.files import load_events, load_table
from strategies import FullySharded, Strategy
from tests.strategies.loops import EXHAUSTIVE, determined_variants, exact, is_virtual, some, variants, with_workers
from tests.strategies.runs import BATCH_NORM, made
from training import Options
from virtual_time.launcher import Death

Kind = type[Strategy]


def simulated(folder: Path, strategy: Strategy, n_gpus: int, name: str = "virtual", **changes: Any) -> dict[str, Any]:
    """Make a small run with dropout and a straggler in virtual time; return its metadata."""
    given = BATCH_NORM | {"lr": Options().lr, "jitter": 0.3, "slow": (f"{n_gpus - 1}:2",)}
    return made(folder, name, strategy, n_gpus=n_gpus, **given | changes)


@EXHAUSTIVE
def test_it_ends_with_the_same_bits_as_in_processes(determined: Kind, tmp_path: Path, exhaustive: bool) -> None:
    """Stragglers and jitter in virtual time, none in processes: they change no number."""
    n_gpus = with_workers(determined, 3)
    for number, strategy in enumerate(determined_variants(determined, n_gpus) if exhaustive else [exact(determined)]):
        folder = tmp_path / str(number)
        virtual = simulated(folder, strategy, n_gpus)
        real = made(folder, "real", strategy, real=True, n_gpus=n_gpus, lr=Options().lr, **BATCH_NORM)
        other_seed = simulated(folder, strategy, n_gpus, "other", seed=1)
        assert virtual["parameter_hash"] == real["parameter_hash"] != other_seed["parameter_hash"], strategy
        assert virtual["bytes_sent"] == real["bytes_sent"], strategy
        for column in ("messages_sent", "bytes_received", "test_accuracy", "train_loss", "step", "samples"):
            tables = [load_table(folder / f"{name}.csv")[column] for name in ("virtual", "real")]
            assert tables[0].equals(tables[1]), (strategy, column)


@EXHAUSTIVE
def test_it_is_the_same_every_time(asynchronous: Kind, tmp_path: Path, exhaustive: bool) -> None:
    n_gpus = with_workers(asynchronous, 3)
    strategies = some(variants(asynchronous, n_gpus), exhaustive) if is_virtual(asynchronous) else []
    for number, strategy in enumerate(strategies):
        folder = tmp_path / str(number)
        first, second = (simulated(folder, strategy, n_gpus, name) for name in ("first", "second"))
        assert first["parameter_hash"] == second["parameter_hash"]
        assert first["seconds"] == second["seconds"]
        tables = [load_events(folder / f"{name}.events.csv.gz") for name in ("first", "second")]
        assert tables[0].equals(tables[1]), "every event, to the nanosecond"
        if number == 0:
            faster = simulated(folder, strategy, n_gpus, "other", slow=())
            assert faster["parameter_hash"]["0"] != first["parameter_hash"]["0"], "the order of messages decides"


def test_its_clocks_show_who_waits_for_a_slow_rank(kind: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(kind, 3)
    if kind.traits.ranks[1] == 1 or not is_virtual(kind):
        return
    facts = simulated(tmp_path, kind(), n_gpus, jitter=0.0, slow=(f"{n_gpus - 1}:10",))
    table = load_table(tmp_path / "virtual.csv")
    workers = table[table["role"] == "worker"].groupby("rank")[["wait_s", "forward_s"]].sum()
    if kind is not FullySharded:  # whose forward pass waits
        assert workers["forward_s"].iloc[-1] > 2 * workers["forward_s"].iloc[0] or kind.traits.asynchronous
    assert facts["transport"] == "simulated"
    assert "virtual time" in facts["remark"]
    if not (kind.traits.asynchronous or kind.traits.workers_may_die or kind.name == "none"):
        assert workers["wait_s"].iloc[0] > 5 * workers["wait_s"].iloc[-1], "all wait for the slow one"


@EXHAUSTIVE
def test_its_workers_may_die_and_return_at_a_given_time(survivor: Kind, tmp_path: Path, exhaustive: bool) -> None:
    n_gpus = with_workers(survivor, 3)
    rank = n_gpus - 1
    deaths = (Death(rank, 0.02), Death(rank, 0.02, 0.03) if survivor.traits.workers_may_return else Death(rank, 0.01))
    strategies = some(variants(survivor, n_gpus), exhaustive) if is_virtual(survivor) else []
    for number, strategy in enumerate(strategies):
        death = deaths[number % 2]
        first, *again = (
            made(tmp_path, f"{number} {name}", strategy, deaths=[death], n_gpus=n_gpus)
            for name in ("ab" if number < 2 else "a")
        )
        assert [(one["rank"], one["returned"]) for one in first["deaths"]] == [(rank, death.returns is not None)]
        for second in again:
            assert first["deaths"] == second["deaths"]
            assert first["parameter_hash"] == second["parameter_hash"]
