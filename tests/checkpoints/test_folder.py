"""The folder of checkpoints: what is in it, that one run at a time writes there, and what a resumed run takes of it."""

from pathlib import Path

import pytest

from gradwire import run
from gradwire.checkpoints import folder as folder_of
from gradwire.core.records.errors import UsageError
from gradwire.core.training.checks import prepare, resolve
from tests.checkpoints.samples import options


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
