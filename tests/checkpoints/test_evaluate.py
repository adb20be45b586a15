"""evaluate.py: each checkpoint is scored once, as the run itself does; what is none is refused."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire import run
from gradwire.checkpoints import evaluate
from gradwire.checkpoints import folder as folder_of
from gradwire.core.records.atomic import locked
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.results import load_table
from tests.checkpoints.samples import BATCH_NORM, options, score_here, scores, seal, start, steps
from tests.ranks import LIMIT, wait_until

__all__ = ["start"]
DIGITS: dict[str, Any] = {"dataset": "digits", "model": "mlp", "epochs": 2, "global_batch_size": 240}


@pytest.mark.end_to_end
def test_started_first_it_scores_each_once_as_the_run_itself_does(tmp_path: Path, start: Callable[..., Any]) -> None:
    process = start("evaluate.py", "--checkpoint_dir", str(tmp_path / "digits" / "c"))
    assert wait_until((tmp_path / "digits" / "c").exists, LIMIT), "it waits for the training to begin"
    for name, changes in {"digits": DIGITS, "batch norm": BATCH_NORM}.items():
        run(options(tmp_path / name, "param_server", **changes), quiet=True)
    said, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors, said.count("top-5")) == (0, "", 4)
    score_here(tmp_path / "batch norm" / "c")
    for name, last in {"digits": 12, "batch norm": 18}.items():
        rows = scores(tmp_path / name / "c" / "evaluation.csv")
        assert [int(row["step"]) for row in rows] == list(range(3, last + 1, 3))
        assert all(0 <= float(row["top1"]) <= float(row["top5"]) <= 1 for row in rows)
        table = load_table(tmp_path / name / "run.csv")
        own = table[table["test_loss"].notna()].set_index("step")
        ends = [row for row in rows if int(row["step"]) in own.index]
        assert len(ends) == len(own) > 1
        for row in ends:
            at = own.loc[int(row["step"])]
            assert float(row["loss"]) == pytest.approx(at["test_loss"], rel=1e-5)
            assert float(row["top1"]) == pytest.approx(at["test_accuracy"], abs=1e-9)
    assert max(float(row["top5"]) for row in scores(tmp_path / "digits" / "c" / "evaluation.csv")) > 0.9


@pytest.mark.slow
def test_what_is_no_checkpoint_is_refused_and_the_others_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(options(tmp_path), quiet=True)
    torn, foreign, other, *rest = folder_of.listed(tmp_path / "c")
    whole = (torn / "rank-1.pt").read_bytes()
    (torn / "rank-1.pt").write_bytes(whole[: len(whole) // 2])
    (foreign / "run.json").write_text('{"format": 1, "step": "many"}')
    torch.save({"strategy": {"x": torch.zeros(3)}, "model": torch.zeros(3)}, other / "rank-0.pt")
    seal(other)
    (tmp_path / "c" / "step-elsewhere").mkdir()
    with pytest.raises(RunFailed, match=r"^3 of the checkpoints could not be scored"):
        score_here(tmp_path / "c")
    lines = capsys.readouterr().err.splitlines()
    reasons = {torn: "damaged", foreign: "run.json", other: "not the state"}
    for line, (path, reason) in zip(lines, reasons.items(), strict=True):
        assert line.startswith(f"refused: {path}")
        assert reason in line
    assert steps(tmp_path / "c" / "evaluation.csv") == [12, 15, 18] == [int(path.name[5:]) for path in rest]


@pytest.mark.slow
def test_started_again_it_goes_on_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, alone = tmp_path / "c" / "evaluation.csv", partial(options, tmp_path, "single", n_gpus=1, batch_size=32)
    run(alone(epochs=2), quiet=True)
    third = folder_of.listed(tmp_path / "c")[2]
    for path in folder_of.listed(tmp_path / "c")[3:]:
        shutil.rmtree(path)
    score_here(tmp_path / "c")
    assert steps(table) == [3, 6, 9]
    first = scores(table)
    run(alone(resume=str(third), run_name="on"), quiet=True)
    capsys.readouterr()
    score_here(tmp_path / "c")
    assert capsys.readouterr().out.count("top-5") == 3, "those in the table are not scored again"
    assert scores(table)[:3] == first
    last = scores(table)[3:]
    for path in folder_of.listed(tmp_path / "c")[3:]:  # gone back to the third, and on by another way
        shutil.rmtree(path)
    run(alone(resume=str(third), run_name="on again", clip_norm=0.001, epochs=2), quiet=True)
    score_here(tmp_path / "c")
    assert scores(table)[:3] == first
    assert steps(table) == [3, 6, 9, 12], "rows of the course that was left are gone"
    assert scores(table)[3]["loss"] != last[0]["loss"]


@pytest.mark.parametrize(
    "text", ["", ",".join([*evaluate.FIRST, "top1", "top5", *evaluate.LAST]) + "\n1,2\n", "\0\0", "\xff"]
)
def test_a_table_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    table = tmp_path / "scores.csv"
    table.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"^--output .*is no table of scores.*\Z"):
        score_here(tmp_path, output=str(table))
    assert table.read_bytes() == text.encode("latin-1")


def test_no_training_and_no_place_to_write_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint_dir .*no training began there within --wait 0\.1 s"):
        score_here(tmp_path / "c", wait=0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^--checkpoint_dir: cannot write in"):
        score_here(tmp_path / "file")
    with (
        locked(tmp_path / "c" / ".evaluation.csv.lock", ""),
        folder_of.in_training(tmp_path / "c"),
        pytest.raises(UsageError, match="another evaluate"),
    ):
        score_here(tmp_path / "c")
