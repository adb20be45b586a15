"""One process: it can have the batches of several workers."""

from pathlib import Path
from typing import Any

import torch

from strategies import ParamServer, RingAllReduce, Single, Strategy
from tests.strategies.runs import made


def saved(tmp_path: Path, strategy: Strategy, **changes: Any) -> dict[str, torch.Tensor]:
    name = f"run {len(list(tmp_path.glob('*.json')))}"
    made(tmp_path, name, strategy, save=str(tmp_path / "model.pt"), dtype="float64", **changes)
    return torch.load(tmp_path / "model.pt", weights_only=True)


def test_it_is_like_so_many_workers_in_however_many_pieces(tmp_path: Path) -> None:
    expected = saved(tmp_path, RingAllReduce(), n_gpus=3)
    for strategy, changes in (
        (Single(workers_like=3), {}),
        (Single(workers_like=3), {"accumulate": 5}),
        (Single(), {"global_batch_size": 48}),
        (ParamServer(), {"n_gpus": 4, "accumulate": 2}),
        (ParamServer(), {"n_gpus": 3, "global_batch_size": 48}),
    ):
        torch.testing.assert_close(saved(tmp_path, strategy, **changes), expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(saved(tmp_path, Single())["weight"], expected["weight"])
