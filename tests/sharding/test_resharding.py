"""A sharded run continues with another number of ranks, from a checkpoint of shards or of one file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.core.records.errors import UsageError
from strategies import FullySharded, ShardedGradients
from tests.strategies.runs import made


@pytest.mark.parametrize(("sharded", "optimizer"), [(ShardedGradients, "muon"), (FullySharded, "adamw")])
def test_a_run_with_another_number_of_ranks_continues(
    tmp_path: Path, sharded: type[ShardedGradients], optimizer: str
) -> None:
    same: dict[str, Any] = {
        "model": "mlp", "optimizer": optimizer, "dtype": "float64", "global_batch_size": 48, "epochs": 1
    }  # fmt: skip

    def final(name: str, gather: bool = False, **more: Any) -> dict[str, torch.Tensor]:
        strategy = replace(sharded(), gather_checkpoints=gather)
        made(tmp_path, name, strategy, **same, **more, save=str(tmp_path / f"{name}.pt"))
        found: dict[str, torch.Tensor] = torch.load(tmp_path / f"{name}.pt")
        return found

    whole = final("whole", n_gpus=2, checkpoint_every=2, checkpoint_keep=9)
    for N in (1, 3):
        resumed = final(f"on {N}", n_gpus=N, resume=str(tmp_path / "whole.checkpoints" / "step-00000002"))
        for name, tensor in whole.items():
            torch.testing.assert_close(tensor, resumed[name], rtol=1e-9, atol=1e-11)
    final("gathering", n_gpus=3, checkpoint_every=2, checkpoint_keep=9, gather=True)
    gathered = tmp_path / "gathering.checkpoints" / "step-00000002"
    assert sorted(path.name for path in gathered.iterdir()) == ["rank-0.pt", "run.json"]
    resumed = final("of one file", n_gpus=2, resume=str(gathered))
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, resumed[name], rtol=1e-9, atol=1e-11)
    made(tmp_path, "x", sharded(), n_gpus=2, checkpoint_every=2, model="mlp")
    with pytest.raises(UsageError, match=r"--n_gpus 3: .* was made with 2"):
        made(tmp_path, "y", sharded(), n_gpus=3, resume=str(tmp_path / "x.checkpoints"), model="mlp")
