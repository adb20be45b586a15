"""The folder of checkpoints: what is in it, that one run at a time writes there, and what a resumed run takes of it."""

from pathlib import Path
from typing import Any

import pytest

from checkpoints import files
from checkpoints import folder as folder_of
from records.errors import UsageError
from records.files import load_table
from tests.checkpoints.samples import options
from tests.runs import N_TRAIN, made
from training import run
from training.checks import resolve
from training.preflight import prepare


def test_a_folder_of_another_run_is_refused_with_the_cure(tmp_path: Path) -> None:
    run(options(tmp_path), quiet=True)
    with pytest.raises(UsageError, match=rf"^--checkpoint_dir .*step-00000018 of another run.*--resume {tmp_path}/c"):
        run(options(tmp_path, run_name="other"), quiet=True)
    first = folder_of.listed(tmp_path / "c")[0]
    with pytest.raises(UsageError, match=r"^--resume .*later ones, up to step-00000018"):
        run(options(tmp_path, resume=str(first), run_name="on"), quiet=True)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "evaluation.csv").touch()
    with pytest.raises(UsageError, match=r"^--checkpoint_dir .*evaluation.csv of another run.*or delete it"):
        run(options(tmp_path, run_name="other", checkpoint_dir=str(tmp_path / "e")), quiet=True)
    prepare(resolve(options(tmp_path, resume=str(tmp_path / "c"), run_name="further", epochs=5)))


def test_one_run_at_a_time_writes(tmp_path: Path) -> None:
    (tmp_path / ".step-00000002").mkdir()
    (tmp_path / ".step-00000001.gone").mkdir()
    with folder_of.in_training(tmp_path):
        assert folder_of.is_training(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {".training"}, "what a killed run left is gone"
        with pytest.raises(UsageError, match="another run is writing there"), folder_of.in_training(tmp_path):
            pass
    assert not folder_of.is_training(tmp_path)


def test_checkpoints_are_listed_by_their_step(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-00000002", "step-2", "step-x", "step-000000003"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    (tmp_path / "step-00000009").mkdir()
    names = [path.name for path in folder_of.listed(tmp_path)]
    assert names == ["step-00000002", "step-99999999", "step-100000000"]


def test_only_the_newest_are_kept_and_the_folder_names_the_newest(tmp_path: Path) -> None:
    run(options(tmp_path, checkpoint_keep=2), quiet=True)
    found = folder_of.listed(tmp_path / "c")
    assert len(found) == 2
    assert folder_of.latest(tmp_path / "c") == found[1]
    assert {path.name for path in (tmp_path / "c").iterdir()} == {".training", *(path.name for path in found)}


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
