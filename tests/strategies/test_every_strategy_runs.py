"""Every strategy, by being in the table: whole runs that learn, can be repeated, replayed and resumed."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from checkpoints import files
from checkpoints.folder import listed
from records.errors import UsageError
from records.files import load_metadata
from strategies import Strategy
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.common.builtin import Builtin
from tests.ranks import LIMIT
from tests.runs import IN_MEMORY
from tests.strategies.loops import Task, exact, fit, variants
from tests.strategies.runs import BATCH_NORM, made
from training import Options, run
from virtual_time.cluster import Compute
from virtual_time.launcher import VirtualTime
from virtual_time.network import OneSwitch

Kind = type[Strategy]
PHASES = {"data": 1e-4, "forward": 1e-3, "backward": 2e-3, "update": 5e-4, "encode": 1e-3, "decode": 1e-3}


def test_a_first_run_learns(kind: Kind, tmp_path: Path) -> None:
    n_gpus, by_chance = fit(kind, 4), kind.traits.asynchronous and kind.name in IN_MEMORY
    options = Options(
        strategy=kind(), n_gpus=n_gpus, device="cpu", results_dir=str(tmp_path), run_name="first", timeout=LIMIT
    )
    time = VirtualTime(OneSwitch(n_gpus, 1e9, 5e-5), Compute(options, PHASES))
    # Where nobody waits, the order of arrival decides how stale gradients are: in virtual time it is fixed.
    launcher = time.launcher() if kind.traits.asynchronous and not by_chance else None
    run(options, quiet=True, launcher=launcher)
    facts = load_metadata(tmp_path / "first.json")
    assert by_chance or facts["test_accuracy"] >= (0.9 if kind.traits.agree else 0.8)
    assert facts["replicas_identical"] or not kind.traits.agree
    assert set(facts["optimizer_bytes"]) == {str(rank) for rank in range(len(facts["roles"]))}


@pytest.mark.slow
@pytest.mark.with_baselines
def test_the_same_run_twice_is_bit_identical_and_another_seed_is_not(determined: Kind, tmp_path: Path) -> None:
    first, second, other = (
        made(tmp_path, f"{number}", exact(determined), seed=seed, **BATCH_NORM)["parameter_hash"]
        for number, seed in enumerate((0, 0, 1))
    )
    assert first == second
    assert first != other


# Replay


def _refusal(strategy: Strategy, n_gpus: int) -> str:
    """What the strategy says to being replayed, if it cannot be."""
    size = dataclasses.replace(Task(strategy, n_gpus).size, replayed=True)
    try:
        strategy.check(size)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_a_replay_has_the_same_parameters_bit_for_bit_or_is_refused(kind: Kind, tmp_path: Path) -> None:
    n_gpus, same = fit(kind, 4), BATCH_NORM | {"lr_schedule": "step"}
    for number, strategy in enumerate(variants(kind, n_gpus)):
        others = [rank for rank, role in enumerate(strategy.roles(n_gpus)) if role == "worker"]
        facts = made(tmp_path, f"run {number}", strategy, slow=(f"{others[0]}:3",), jitter=0.5, **same)
        again = same | {"replay": str(tmp_path / f"run {number}"), "slow": (f"{others[-1]}:4",)}
        refused = _refusal(strategy, n_gpus)
        if refused or not facts["arrivals"]:
            with pytest.raises(UsageError, match="was synchronous" if not refused else "--replay") as caught:
                made(tmp_path, "again", strategy, **again)
            assert str(caught.value).count("\n") == 0
            assert kind.traits.asynchronous or not refused
            continue
        repeated = made(tmp_path, f"again {number}", strategy, **again)
        assert repeated["parameter_hash"] == facts["parameter_hash"], strategy
        assert repeated["arrivals"] == facts["arrivals"]


# Resume

CHECKPOINTED: dict[str, Any] = BATCH_NORM | {
    "checkpoint_keep": 100, "batch_size": 8, "lr_schedule": "cosine", "warmup": 1.0,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.with_baselines
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(complete: Kind, tmp_path: Path) -> None:
    # DDP orders its buckets anew after its first step, and sums more than two ranks by their places in a bucket.
    same = CHECKPOINTED | {"optimizer": "adam"} | ({"n_gpus": 2} if issubclass(complete, Builtin) else {})
    expected = made(tmp_path, "whole", exact(complete), **same, checkpoint_every=3)["parameter_hash"]
    found = listed(tmp_path / "whole.checkpoints")
    steps = [files.load_run(path)["step"] for path in found]
    assert steps == list(range(3, steps[-1] + 1, 3))
    assert len(steps) >= 6  # in 3 epochs
    for path in (found[0], found[len(found) // 2], found[-1]):  # in an epoch, at the end of one, at the very end
        resumed = made(tmp_path, f"from {path.name}", exact(complete), **same, resume=str(path))
        assert resumed["parameter_hash"] == expected, path.name


@pytest.mark.slow
def test_a_resumed_run_goes_on_from_rank_0(served: Kind, tmp_path: Path) -> None:
    same = CHECKPOINTED | {"lr": 0.05, "epochs": 4}
    if not served().cost().code:  # which is of sgd
        same |= {"optimizer": "adam"}
    made(tmp_path, "run", served(), **same, checkpoint_every=2)
    found = listed(tmp_path / "run.checkpoints")
    # Amid epochs, and at or near the end of all; a rank 0 that writes, and waits for nobody, may come to few of them.
    for path in dict.fromkeys((found[0], found[len(found) // 3], found[-1])):
        at = files.load_run(path)
        made(tmp_path, path.name, served(), **same, resume=str(path))
        root = pd.read_csv(tmp_path / f"{path.name}.csv").query("rank == 0")  # the server, where there is one
        assert root["epoch"].tolist() == list(range(at["epoch"], 5)), "the epoch that it was made in is ended"
        assert root["step"].iloc[0] >= at["step"], "it counts on from there"
        assert root["test_accuracy"].notna().all()
        assert served.traits.asynchronous or root["test_accuracy"].iloc[-1] > 0.7


def test_a_run_is_not_resumed_to_less_than_it_has(tmp_path: Path) -> None:
    made(tmp_path, "run", RingAllReduce(), n_gpus=2, checkpoint_every=5)
    last = listed(tmp_path / "run.checkpoints")[-1]
    with pytest.raises(UsageError, match=r"--epochs 1: .* is of epoch 3"):
        made(tmp_path, "short", RingAllReduce(), n_gpus=2, epochs=1, resume=str(last))
    assert not list(tmp_path.glob("short*"))
