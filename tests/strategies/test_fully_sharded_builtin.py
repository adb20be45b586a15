"""FSDP2 says how many bytes it sends, and what it cannot do; its steps are tried in `test_every_strategy.py`."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.core.records.errors import RunFailed, UsageError
from tests.runs import made


def tied(input_shape: tuple[int], n_classes: int) -> nn.Module:
    """Two of its layers share a matrix."""
    model = nn.Sequential(nn.Linear(*input_shape, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, n_classes))
    model[2].weight = model[1].weight
    return model


TIED: dict[str, Any] = {"model": f"{__name__}:tied", "n_gpus": 2, "epochs": 1}


def test_bytes_are_those_of_each_gathering_and_reduction(tmp_path: Path) -> None:
    """Of 2 -> 4 -> 4 -> 4 -> 2 the first and the last layer are blocks; the rest stays between the two passes."""
    facts = made(tmp_path, BuiltinFullySharded(block_modules="0,3"), train_size=160, accumulate=3, **TIED)
    blocks, rest = 4 * (2 * 4 + 4 + 4 * 2 + 2), 4 * (4 * 4 + 4 + 4)
    assert facts["bytes_sent"] == 2 * 5 * (3 * (2 * blocks + rest) + blocks + rest) / 2


REFUSED: dict[str, dict[str, Any]] = {
    "--block_modules: fully_sharded_builtin takes no parameters that are in several": {},
    "--optimizer: fully_sharded_builtin cuts tensors": {"optimizer": "adafactor"},
    "--hashes: no rank of fully_sharded_builtin has all of x": {"hashes": True},
    "--accumulate 3: .* with fully_sharded_builtin all need as many": {"accumulate": 3, "train_size": 37},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_cannot_do_is_refused(tmp_path: Path, message: str) -> None:
    with pytest.raises((UsageError, RunFailed), match=message):
        made(tmp_path, "fully_sharded_builtin", **TIED | REFUSED[message])
