"""The sharded ring: each rank updates its part of x, with its part of the optimizer's state."""

from pathlib import Path
from typing import Any

import pytest

from records.errors import UsageError
from strategies.all_reduce.ring_all_reduce import RingAllReduce
from strategies.all_reduce.sharded_ring import ShardedRing
from tests.strategies.runs import made
from training.optimizers import OPTIMIZERS

DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp", "epochs": 1, "batch_size": 64, "train_size": 500}


@pytest.mark.parametrize(("optimizer", "vectors"), [("sgd", 1), ("adam", 2)])
def test_the_optimizers_memory_is_one_nth(tmp_path: Path, optimizer: str, vectors: int) -> None:
    same = DIGITS | {"optimizer": optimizer}
    whole = made(tmp_path, "whole", RingAllReduce(), **same)["optimizer_bytes"]
    parts = made(tmp_path, "parts", ShardedRing(), **same)["optimizer_bytes"]
    assert len(parts) == 4
    assert len(set(whole.values())) == 1
    slack = vectors * 4 + 8  # an element more or less; the count of steps is no vector
    for nbytes in parts.values():
        assert abs(nbytes - whole["0"] / 4) <= slack
    assert abs(sum(parts.values()) - whole["0"]) <= 4 * 8


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "lr": 0.01}, {"optimizer": "rmsprop", "lr": 0.01}])
def test_a_bound_on_the_gradient_is_for_all_of_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    same = changes | {"clip_norm": 0.05, "dtype": "float64", "n_gpus": 3, "model": "mlp"}
    ring = made(tmp_path, "ring", RingAllReduce(), **same)
    sharded = made(tmp_path, "sharded", ShardedRing(), **same)
    assert sharded["replicas_identical"] is True
    assert sharded["test_accuracy"] == ring["test_accuracy"]


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_an_optimizer_that_looks_at_all_of_x_is_refused_in_one_line(tmp_path: Path, optimizer: str) -> None:
    if optimizer not in OPTIMIZERS:
        pytest.skip("not in this torch")
    with pytest.raises(UsageError) as caught:
        made(tmp_path, "run", ShardedRing(), optimizer=optimizer)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(f"--optimizer {optimizer}: ")
    assert optimizer != "adafactor" or "sharded_ring updates x in parts" in said
