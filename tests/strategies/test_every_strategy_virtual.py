"""Every strategy, by being in the table, in virtual time: the same bits as in real processes, every time the same."""

import dataclasses
from pathlib import Path
from typing import Any

from checkpoints.files import load_run
from checkpoints.folder import listed
from records.errors import UsageError
from records.files import load_events, load_table
from strategies import Strategy
from tests.runs import metadata, small
from tests.strategies.loops import determined_variants, variants, with_workers
from training import Options, run
from virtual_time.cluster import Compute
from virtual_time.launcher import Death, VirtualTime
from virtual_time.network import OneSwitch

Kind = type[Strategy]
PHASES = {"data": 1e-4, "forward": 1e-3, "backward": 2e-3, "update": 5e-4}


def simulated(folder: Path, strategy: Strategy, n_gpus: int, name: str = "virtual", **changes: Any) -> dict[str, Any]:
    """Make a small run with dropout in virtual time; return its metadata."""
    given = {"model": "tests.workload:batch_norm", "jitter": 0.3, "slow": (f"{n_gpus - 1}:2",), "epochs": 3}
    options = small(folder, strategy, n_gpus=n_gpus, run_name=name, **given | changes)
    time = VirtualTime(OneSwitch(n_gpus, 1e7, 1e-4), Compute(options, PHASES))
    run(options, quiet=True, launcher=time.launcher())
    return metadata(folder, name)


def refusal_of_replay(options: Options) -> str:
    """What a strategy says to being replayed, if it cannot be."""
    try:
        run(options, quiet=True)
    except UsageError as error:
        return str(error)
    return ""


def needs_shared_memory(folder: Path, strategy: Strategy, n_gpus: int) -> bool:
    """Whether it says so."""
    try:
        simulated(folder, strategy, n_gpus, "tried", epochs=1)
    except UsageError as error:
        return str(error).startswith(f"--strategy {strategy.name}: needs shared memory")
    return False


def test_it_ends_with_the_same_bits_as_in_processes(determined: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(determined, 3)
    for number, strategy in enumerate(determined_variants(determined, n_gpus)):
        folder = tmp_path / str(number)
        virtual = simulated(folder, strategy, n_gpus)
        options = small(folder, strategy, n_gpus=n_gpus, run_name="real", model="tests.workload:batch_norm", epochs=3)
        run(options, quiet=True)
        real = metadata(folder, "real")
        assert virtual["parameter_hash"] == real["parameter_hash"], strategy
        assert virtual["bytes_sent"] == real["bytes_sent"], strategy
        for column in ("messages_sent", "bytes_received", "test_accuracy", "train_loss", "step", "samples"):
            tables = [load_table(folder / f"{name}.csv")[column] for name in ("virtual", "real")]
            assert tables[0].equals(tables[1]), (strategy, column)


def test_whatever_its_options_it_is_resumed_bit_for_bit(complete: Kind, tmp_path: Path) -> None:
    """From amid an epoch, where messages may be on their way, and from the end of one."""
    n_gpus = with_workers(complete, 3)
    for number, strategy in enumerate(determined_variants(complete, n_gpus)):
        folder = tmp_path / str(number)
        whole = simulated(folder, strategy, n_gpus, "whole", checkpoint_every=3, checkpoint_keep=100)
        found = listed(folder / "whole.checkpoints")
        assert len(found) >= 4
        for path in (found[0], found[1], found[-1]):
            resumed = simulated(folder, strategy, n_gpus, f"from {path.name}", resume=str(path))
            assert resumed["parameter_hash"] == whole["parameter_hash"], (strategy, path.name)


def test_whatever_its_options_a_run_that_is_resumed_goes_on(served: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(served, 3)
    if needs_shared_memory(tmp_path, served(), n_gpus):
        return
    for number, strategy in enumerate(variants(served, n_gpus)):
        folder = tmp_path / str(number)
        simulated(folder, strategy, n_gpus, "whole", checkpoint_every=3, checkpoint_keep=100)
        path = listed(folder / "whole.checkpoints")[0]
        simulated(folder, strategy, n_gpus, "resumed", resume=str(path))
        root = load_table(folder / "resumed.csv").query("rank == 0")
        assert root["epoch"].tolist() == list(range(load_run(path)["epoch"], 4)), strategy
        assert root["test_accuracy"].notna().all(), strategy


def test_it_is_the_same_every_time_and_can_be_replayed_in_processes(asynchronous: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(asynchronous, 3)
    if needs_shared_memory(tmp_path, asynchronous(), n_gpus):
        return
    for number, strategy in enumerate(variants(asynchronous, n_gpus)):
        _check_order(tmp_path / str(number), strategy, n_gpus)


def _check_order(tmp_path: Path, strategy: Strategy, n_gpus: int) -> None:
    first, second = (simulated(tmp_path, strategy, n_gpus, name) for name in ("first", "second"))
    assert first["parameter_hash"] == second["parameter_hash"]
    assert first["seconds"] == second["seconds"]
    tables = [load_events(tmp_path / f"{name}.events.csv.gz") for name in ("first", "second")]
    assert tables[0].equals(tables[1]), "every event, to the nanosecond"
    faster = simulated(tmp_path, strategy, n_gpus, "other", slow=())
    assert faster["parameter_hash"]["0"] != first["parameter_hash"]["0"], "the order of messages decides"
    given = {"model": "tests.workload:batch_norm", "epochs": 3}
    replay = small(tmp_path, strategy, n_gpus=n_gpus, run_name="replay", replay=str(tmp_path / "first"), **given)
    if refused := refusal_of_replay(replay):
        assert refused.startswith(f"--replay: with {strategy.name} every rank takes messages in an order of its own")
        return
    assert metadata(tmp_path, "replay")["parameter_hash"]["0"] == first["parameter_hash"]["0"]


def test_its_clocks_show_who_waits_for_a_slow_rank(kind: Kind, tmp_path: Path) -> None:
    n_gpus = with_workers(kind, 3)
    if kind.traits.ranks[1] == 1 or needs_shared_memory(tmp_path, kind(), n_gpus):
        return
    facts = simulated(tmp_path, kind(), n_gpus, jitter=0.0, slow=(f"{n_gpus - 1}:10",))
    table = load_table(tmp_path / "virtual.csv")
    workers = table[table["role"] == "worker"].groupby("rank")[["wait_s", "forward_s"]].sum()
    assert workers["forward_s"].iloc[-1] > 2 * workers["forward_s"].iloc[0] or kind.traits.asynchronous
    assert facts["transport"] == "simulated"
    assert "virtual time" in facts["remark"]
    if not (kind.traits.asynchronous or kind.traits.workers_may_die or kind.name == "none"):
        assert workers["wait_s"].iloc[0] > 5 * workers["wait_s"].iloc[-1], "all wait for the slow one"


def test_its_workers_may_die_and_return_at_a_given_time(survivor: Kind, tmp_path: Path) -> None:
    strategy = survivor()
    n_gpus = with_workers(survivor, 3)
    if needs_shared_memory(tmp_path, strategy, n_gpus):
        return
    rank = n_gpus - 1
    for death in (
        Death(rank, 0.02),
        Death(rank, 0.02, 0.03) if survivor.traits.workers_may_return else Death(rank, 0.01),
    ):
        found = []
        for name in ("first", "second"):
            folder = tmp_path / f"{death.time}-{death.returns}-{name}"
            options = small(folder, dataclasses.replace(strategy), n_gpus=n_gpus, epochs=4)
            run(options, quiet=True, launcher=VirtualTime(
                OneSwitch(n_gpus, 1e7, 1e-4), Compute(options, PHASES), [death]).launcher())  # fmt: skip
            found.append(metadata(folder))
        first, second = found
        assert [(one["rank"], one["returned"]) for one in first["deaths"]] == [(rank, death.returns is not None)]
        assert first["deaths"] == second["deaths"]
        assert first["parameter_hash"] == second["parameter_hash"]
