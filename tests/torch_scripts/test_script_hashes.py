"""`--hashes` of a script: where two runs of it part, and why; and that they change nothing."""

from pathlib import Path

import pandas as pd
import pytest

from gradwire.diagnosis.divergence import load
from gradwire.diagnosis.why import why
from gradwire.virtual_time import simulate
from tests.runs import said_by
from tests.torch_scripts import SCRIPTS


def run(folder: Path, name: str, *arguments: str, script: str = "hashed.py", options: tuple[str, ...] = ()) -> str:
    given = ["--script", str(SCRIPTS / script), "--compute=1ms", f"--results_dir={folder}", f"--run_name={name}"]
    code, text = said_by(lambda: simulate.main([*given, *options, "--", *arguments]))
    return text if code else ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for layout in ("ddp", "stages"):
        assert run(folder, layout, layout, options=("--hashes",)) == ""
    return folder


@pytest.mark.parametrize(
    ("change", "part", "cause"),
    [
        ("ddp lr 0.25", "step 2: the parameters x of worker 0, first in module.0.weight",
         "another update of x: arguments"),
        ("ddp seed 1", "step 1: the parameters x of worker 0, first in module.0.weight", "another start: arguments"),
        ("ddp data 1", "step 2: the batch of worker 1", "another batch: arguments"),
        ("ddp factor 2", "step 1: the gradient of worker 1, first in module.0.weight",
         "a factor: the gradient of B is 2"),
        ("stages factor 2", "step 1: the gradient of worker 1, first in weight", "a factor: the gradient of B is 2"),
        ("stages data 0", "step 2: the batch of worker 0", "another batch: arguments"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(change: str, part: str, cause: str, folder: Path) -> None:
    first, *arguments = change.split()
    other = change.replace(" ", "-")
    assert run(folder, other, first, *arguments, options=("--hashes",)) == ""
    a, b = load(str(folder / first)), load(str(folder / other))
    text = why(a, b)
    assert f", {part}" in text, text
    assert f"cause     {cause}" in text
    assert "\nsources" not in text
    b.run.metadata["sources"] = dict.fromkeys(a.run.metadata["sources"], "of another text")
    assert why(a, b) == f"{text}\nsources   {', '.join(a.run.metadata['sources'])}: another text in B"


def test_another_network_changes_no_bit_and_hashes_take_no_time(folder: Path) -> None:
    assert run(folder, "slow", "ddp", options=("--hashes", "--bandwidth=1mbit")) == ""
    assert run(folder, "plain", "ddp") == ""
    assert why(load(str(folder / "ddp")), load(str(folder / "slow"))).startswith("the same bits in all 3 steps")
    seconds = {name: pd.read_csv(folder / f"{name}.csv")["epoch_s"].tolist() for name in ("ddp", "plain", "slow")}
    assert seconds["ddp"] == seconds["plain"] != seconds["slow"]


def test_a_script_without_steps_has_no_hashes(folder: Path) -> None:
    text = run(folder, "none", "0", script="groups.py", options=("--n_gpus=4", "--hashes"))
    assert "error: --hashes: no rank made a step of an optimizer; leave it out" in text
    assert not list(folder.glob("none*"))


def test_a_sweep_keeps_no_hashes(tmp_path: Path) -> None:
    given = ["--script", __file__, "--sweep=n_gpus=2", "--hashes", f"--results_dir={tmp_path}"]
    code, text = said_by(lambda: simulate.main(given))
    assert (code, "--hashes: a sweep writes one table" in text) == (2, True), text
