"""Every strategy, by being in the table: whole runs that learn, are replayed and resumed, and are those of processes.

In virtual time, but for those that need processes: a determined strategy ends with the same bits in both.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gradwire import Options
from gradwire.baselines.builtin import Builtin
from gradwire.checkpoints import files
from gradwire.checkpoints.folder import listed
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.run_size import check_strategy
from gradwire.results import load_events, load_table
from gradwire.virtual_time.launcher import Death
from strategies import AsyncParamServer, FullySharded, RingAllReduce, Strategy
from strategies.local_models.fragments import Fragmented
from tests.strategies.kinds import EXHAUSTIVE, determined_variants, exact, fit, is_virtual, some, variants, with_workers
from tests.strategies.loops import Task
from tests.strategies.runs import BATCH_NORM, made

Kind = type[Strategy]
FIRST = {name: getattr(Options(), name) for name in ("dataset", "model", "epochs", "batch_size")}


@EXHAUSTIVE
@pytest.mark.corners("ring_all_reduce", "async_param_server", "decoupled_diloco", "demo", "streaming_diloco", "ad_psgd")
def test_a_first_run_learns(kind: Kind, tmp_path: Path, exhaustive: bool) -> None:
    """As a first run without options, if exhaustive; else on two classes of points."""
    by_chance = kind.traits.asynchronous and not is_virtual(kind)  # the order of arrival decides on staleness
    own = Options(strategy=kind())
    few = {"epochs": 6, "lr": max(own.lr, 0.05)}  # some move an element by about the rate a step, and no further
    facts = made(tmp_path, "first", kind(), **FIRST | {"lr": own.lr} if exhaustive else few)
    assert by_chance or facts["test_accuracy"] >= (0.9 if kind.traits.agree else 0.8)
    assert facts["replicas_identical"] or not kind.traits.agree
    assert set(facts["optimizer_bytes"]) == {str(rank) for rank in range(len(facts["roles"]))}


# Replay


def refusal(strategy: Strategy, n_gpus: int) -> str:
    """What the strategy says to being replayed, if it cannot be."""
    size = dataclasses.replace(Task(strategy, n_gpus).size, replayed=True)
    try:
        check_strategy(strategy, size)
    except UsageError as error:
        return str(error)
    return ""


@EXHAUSTIVE
def test_a_replay_has_the_same_parameters_bit_for_bit_or_is_refused(
    served: Kind, tmp_path: Path, exhaustive: bool
) -> None:
    """In processes too, whose order of messages is by chance, if exhaustive; else of one strategy."""
    kind, n_gpus, same = served, fit(served, 4), BATCH_NORM | {"lr_schedule": "step"}
    for number, strategy in enumerate(variants(kind, n_gpus) if exhaustive else [kind()]):
        others = [rank for rank, role in enumerate(strategy.roles(n_gpus)) if role == "worker"]
        refused = refusal(strategy, n_gpus)
        assert kind.traits.asynchronous or not refused
        if refused and strategy != kind():
            continue
        in_processes = strategy == kind() and not refused and (exhaustive or kind is AsyncParamServer)
        for real in (False, True) if in_processes else (False,):
            run, again = f"run {number} {real}", f"again {number} {real}"
            facts = made(tmp_path, run, strategy, real, slow=(f"{others[0]}:3",), jitter=0.5, **same)
            anew: dict[str, Any] = same | {"replay": str(tmp_path / run), "slow": (f"{others[-1]}:4",)}
            if refused or not facts["arrivals"]:
                with pytest.raises(UsageError, match=rf"^--replay.*{'' if refused else 'was synchronous'}.*\Z"):
                    made(tmp_path, again, strategy, real, **anew)
                break
            repeated = made(tmp_path, again, strategy, real, **anew)
            assert repeated["parameter_hash"] == facts["parameter_hash"], strategy
            assert repeated["arrivals"] == facts["arrivals"]


# Resume

CHECKPOINTED: dict[str, Any] = BATCH_NORM | {"checkpoint_keep": 100, "lr_schedule": "cosine", "warmup": 1.0}


@pytest.mark.with_baselines
@EXHAUSTIVE
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(
    complete: Kind, tmp_path: Path, exhaustive: bool
) -> None:
    """Whatever its options: from amid an epoch, where messages may be on their way, from the end of one, and of all."""
    # DDP orders its buckets anew after its first step, and sums more than two ranks by their places in a bucket.
    is_builtin = issubclass(complete, Builtin)
    n_gpus = 2 if is_builtin else with_workers(complete, 3)
    same = CHECKPOINTED | {"n_gpus": n_gpus, "epochs": 3 if exhaustive else 2}
    if not complete().cost().code:  # which is of sgd
        same |= {"optimizer": "adam"}
    strategies = [complete()] if is_builtin else some(determined_variants(complete, n_gpus), exhaustive)
    for number, strategy in enumerate(strategies):
        folder = tmp_path / str(number)
        expected = made(folder, "whole", strategy, **same, checkpoint_every=3)["parameter_hash"]
        found = listed(folder / "whole.checkpoints")
        steps = [files.load_run(path)["step"] for path in found]
        assert steps == list(range(3, steps[-1] + 1, 3))
        assert len(steps) >= (4 if exhaustive else 2)
        for path in (found[0], found[1], found[-1]) if exhaustive else found[:1]:
            resumed = made(folder, f"from {path.name}", strategy, **same, resume=str(path))
            assert resumed["parameter_hash"] == expected, (strategy, path.name)


@EXHAUSTIVE
def test_a_resumed_run_goes_on_from_rank_0(served: Kind, tmp_path: Path, exhaustive: bool) -> None:
    n_gpus, epochs = with_workers(served, 3), 3 if exhaustive else 2
    same = CHECKPOINTED | {"epochs": epochs, "n_gpus": n_gpus}
    if not served().cost().code:  # which is of sgd
        same |= {"optimizer": "adam"}
    strategies = variants(served, n_gpus) if exhaustive and is_virtual(served) else [served()]
    for number, strategy in enumerate(strategies):
        folder = tmp_path / str(number)
        made(folder, "run", strategy, **same, checkpoint_every=2)
        found = listed(folder / "run.checkpoints")
        # Amid an epoch, and at or near the end; a rank 0 that writes, and waits for nobody, may come to few of them.
        for path in dict.fromkeys((found[0], found[-1]) if exhaustive or served is AsyncParamServer else found[:1]):
            at = files.load_run(path)
            made(folder, path.name, strategy, **same, resume=str(path))
            root = pd.read_csv(folder / f"{path.name}.csv").query("rank == 0")  # the server, where there is one
            assert root["epoch"].tolist() == list(range(at["epoch"], epochs + 1)), (
                "the epoch that it was made in is ended"
            )
            assert root["step"].iloc[0] >= at["step"], "it counts on from there"
            assert root["test_accuracy"].notna().all()
            assert served.traits.asynchronous or root["test_accuracy"].iloc[-1] > 0.7


def test_a_run_is_not_resumed_to_less_than_it_has(tmp_path: Path) -> None:
    made(tmp_path, "run", RingAllReduce(), n_gpus=2, checkpoint_every=5)
    last = listed(tmp_path / "run.checkpoints")[-1]
    with pytest.raises(UsageError, match=r"--epochs 1: .* is of epoch 3"):
        made(tmp_path, "short", RingAllReduce(), n_gpus=2, epochs=1, resume=str(last))
    assert not list(tmp_path.glob("short*"))


# In virtual time


def simulated(folder: Path, strategy: Strategy, n_gpus: int, name: str = "virtual", **changes: Any) -> dict[str, Any]:
    """Make a small run with dropout and a straggler in virtual time; return its metadata."""
    given = BATCH_NORM | {"lr": Options().lr, "jitter": 0.3, "slow": (f"{n_gpus - 1}:2",)}
    return made(folder, name, strategy, n_gpus=n_gpus, **given | changes)


@EXHAUSTIVE
@pytest.mark.corners("ring_all_reduce", "param_server", "fully_sharded", "streaming_diloco")
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
    if not is_virtual(asynchronous):
        return
    strategies = variants(asynchronous, n_gpus) if exhaustive else [asynchronous()]
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


@pytest.mark.corners("ring_all_reduce", "param_server", "async_param_server", "local_sgd", "ad_psgd")
def test_its_clocks_show_who_waits_for_a_slow_rank(kind: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(kind, 3)
    if kind.traits.ranks[1] == 1 or not is_virtual(kind):
        return
    facts = simulated(tmp_path, kind(), n_gpus, jitter=0.0, slow=(f"{n_gpus - 1}:10",))
    table = load_table(tmp_path / "virtual.csv")
    workers = table[table["role"] == "worker"].groupby("rank")[["wait_s", "forward_s"]].sum()
    if not issubclass(kind, FullySharded | Fragmented):  # whose forward pass waits
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
    if not is_virtual(survivor):
        return
    strategies = variants(survivor, n_gpus) if exhaustive else [survivor()]
    for number, strategy in enumerate(strategies):
        death = deaths[(1 + number) % 2]
        first, *again = (
            made(tmp_path, f"{number} {name}", strategy, deaths=[death], n_gpus=n_gpus)
            for name in ("ab" if number < 2 else "a")
        )
        assert [(death["rank"], death["returned"]) for death in first["deaths"]] == [(rank, death.returns is not None)]
        for second in again:
            assert first["deaths"] == second["deaths"]
            assert first["parameter_hash"] == second["parameter_hash"]
