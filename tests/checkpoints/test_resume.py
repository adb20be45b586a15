"""A resumed run ends where the uninterrupted one does, bit for bit."""

from pathlib import Path
from typing import Any

from checkpoints import files
from checkpoints import folder as folder_of
from records.files import load_table
from tests.runs import N_TRAIN, made


def test_a_resumed_run_has_the_counts_among_the_buffers_and_counts_its_own_samples(tmp_path: Path) -> None:
    """BatchNorm that takes the mean over all batches must know how many there were."""
    same: dict[str, Any] = {"model": "tests.workload:cumulative_batch_norm", "n_gpus": 2}
    made(tmp_path, "ring_all_reduce", "whole", **same, checkpoint_every=5)
    path = folder_of.listed(tmp_path / "whole.checkpoints")[-1]
    assert files.load_run(path)["epoch"] == 2, "the last"
    made(tmp_path, "ring_all_reduce", "resumed", **same, resume=str(path))
    whole, table = (load_table(tmp_path / f"{name}.csv") for name in ("whole", "resumed"))
    for column in ("test_loss", "train_loss"):
        assert table[column].dropna().tolist() == whole[whole["epoch"] == 2][column].dropna().tolist()
    assert 0 < table["samples"].sum() < N_TRAIN
