"""The line of a run that wrote no checkpoint."""

from pathlib import Path

import pytest

from gradwire.checkpoints.wing import WING
from gradwire.options import Options


@pytest.mark.parametrize(("resume", "step"), [(None, "step 9"), ("before", "the next multiple of 9")])
def test_a_run_without_a_checkpoint_says_which_step_no_rank_came_to(
    resume: str | None, step: str, tmp_path: Path
) -> None:
    options = Options(checkpoint_every=9, resume=resume, checkpoint_dir=str(tmp_path / "none"))
    assert WING.summary(options, {}) == [f"no checkpoint was written: no writing rank came to {step}"]
