"""A task says what the loss is a mean of and what is scored: ranks are weighted by it, and every table shows it."""

import csv
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradwire.pictures import compare
from gradwire.pictures.finished import find_runs
from gradwire.pictures.plot import picture
from gradwire.results import load_events, load_table
from tests import tasks
from tests.checkpoints.samples import score_here
from tests.core.training.test_trainer import plain
from tests.runs import BUILTIN, arguments, made, n_gpus_of, said, small, strategy_of
from tests.selection import by_default
from tests.strategies import runs

LINES: dict[str, Any] = {
    "dataset": "tests.tasks:lines", "model": "tests.tasks:language", "task": "language_model", "dtype": "float64",
    "global_batch_size": 12, "epochs": 3, "lr": 0.5, "momentum": 0.5,
    "lr_schedule": "cosine",
}  # fmt: skip
HEIGHTS: dict[str, Any] = {"dataset": "tests.tasks:heights", "model": "tests.workload:linear", "batch_size": 8}


def options_of(name: str, **changes: Any) -> dict[str, Any]:
    return LINES | {"n_gpus": n_gpus_of(name, 3)} | changes


def trained(folder: Path, name: str, **changes: Any) -> torch.Tensor:
    strategy = strategy_of(name, **({"workers_like": 3} if name == "single" else {}))
    runs.made(folder, "run", strategy, **options_of(name, save=str(folder / "x.pt"), **changes))
    return torch.cat([tensor.flatten() for tensor in torch.load(folder / "x.pt", weights_only=True).values()])


SYNCHRONOUS = ("single", "ring_all_reduce", "param_server", "sharded_ring", "overlapped_ring", *BUILTIN)


SEVERAL = ("single", "ring_all_reduce", "param_server", "overlapped_ring", "fully_sharded_builtin")


@pytest.mark.parametrize("name", by_default(SEVERAL, SYNCHRONOUS))
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_ranks_with_unequal_numbers_of_tokens_take_the_steps_of_one_process_on_whole_batches(
    tmp_path: Path, name: str, accumulate: int
) -> None:
    x = trained(tmp_path, name, accumulate=accumulate)
    run, sgd = small(tmp_path / "one", "single", **options_of("single")), partial(torch.optim.SGD, lr=0.5, momentum=0.5)
    expected, model, losses = plain(run, sgd), tasks.language((tasks.LENGTH,), tasks.TOKENS).double(), []
    torch.testing.assert_close(x, expected[-1], rtol=1e-11, atol=1e-12)
    for end in expected[3::4]:
        nn.utils.vector_to_parameters(end, model.parameters())
        _, _, test_x, test_y = tasks.lines()
        losses.append(F.cross_entropy(model(test_x).flatten(0, 1), test_y.flatten()).item())
    table = load_table(tmp_path / "run.csv").dropna(subset="test_loss")
    assert table["test_loss"].tolist() == pytest.approx(losses, rel=1e-12)
    assert table["test_bits_per_character"].tolist() == pytest.approx([loss / math.log(2) for loss in losses])
    assert table["test_perplexity"].tolist() == pytest.approx([math.exp(loss) for loss in losses])
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("task", ["regression", "own", "contrastive"])
def test_regression_a_model_with_its_own_loss_and_a_contrastive_one_learn(tmp_path: Path, task: str) -> None:
    more = HEIGHTS | {"epochs": 6, "n_gpus": 2} | ({"model": "tests.tasks:own_loss"} if task == "own" else {})
    facts = made(tmp_path, "ring_all_reduce", task=f"tests.tasks:{task}", **more)
    losses = load_table(tmp_path / "run.csv")["test_loss"].dropna().tolist()
    assert losses[-1] < 0.8 * losses[0], losses
    assert (facts["task"], facts["better"], facts["test_loss"]) == (f"tests.tasks:{task}", {}, losses[-1])


def test_a_function_is_not_called_with_less_than_it_was_tried_with(tmp_path: Path) -> None:
    made(tmp_path, "single", task="tests.tasks:of_two", n_gpus=1, **HEIGHTS)
    code, text = said("--strategy", "single", *arguments(HEIGHTS | {"batch_size": 39, "task": "tests.tasks:of_two"}))
    assert (code, text.count("\n")) == (2, 1), text
    assert "--batch_size: the last batch leaves a worker one sample, on which --model tests.workload:linear" in text


TOLD = {f"tests.tasks:{name}": said for name, (_, said) in tasks.WRONG.items()} | {
    "tests.tasks:TOKENS": "is no function; define it as function(model, x, y)",
    "tests.tasks:absent": "has no absent; define it there",
    "tests.tasks:own": "raised TypeError",
    "classificatoin": "unknown; did you mean classification?",
    "language_model": "make both integers [samples, tokens]",
    "classification": "x is torch.int64; make it uint8 (pixels 0..255) or floating, or give another --task",
}


@pytest.mark.parametrize("task", TOLD)
def test_what_is_no_task_or_not_one_of_the_data_ends_with_one_line(tmp_path: Path, task: str) -> None:
    options = arguments(LINES if task == "classification" else HEIGHTS)
    code, text = said("--strategy", "single", "--results_dir", str(tmp_path), *options, "--task", task)
    assert (code, text.count("\n"), list(tmp_path.iterdir())) == (2, 1, []), text
    assert text.startswith("error: --dataset" if task == "classification" else f"error: --task {task}: "), text
    assert TOLD[task] in text


def test_every_table_shows_the_names_that_the_task_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--n_gpus", "2", "--device", "cpu", "--results_dir", str(tmp_path), "--checkpoint_every", "6"]
    code, text = said(*arguments(LINES), *more, "--run_name", "lines", "--checkpoint_dir", str(tmp_path / "c"))
    assert code == 0, text
    facts = json.loads((tmp_path / "lines.json").read_text())
    bits = facts["test_bits_per_character"]
    assert f"\ntest bits per character {bits:.4f}\ntest perplexity {facts['test_perplexity']:.4f}\n" in text
    assert "accuracy" not in text
    assert (facts["loss_is_a_mean_of"], facts["better"]["bits_per_character"]) == ("tokens", "lower")
    made(tmp_path, "single", "points", n_gpus=1, epochs=1)
    capsys.readouterr()
    paths = [str(tmp_path / f"{name}.json") for name in ("lines", "points")]
    assert compare.main(paths) == 0
    table = capsys.readouterr().out
    assert "test bits per character" in table
    assert "test accuracy" in table
    assert f"{bits:.4f}" in table
    titles = [axes.get_title() for axes in picture(find_runs(paths[:1])).axes]
    assert titles[0] == "bits per character against epochs"
    marks = load_events(tmp_path / "lines").query("phase == 'score'")
    assert marks.groupby("tag")["value"].last()["test_bits_per_character"] == bits
    score_here(tmp_path / "c")
    with (tmp_path / "c" / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == ["step", "loss", "bits_per_character", "perplexity", "checkpoint", "id"]
    by_step = {int(row["step"]): float(row["bits_per_character"]) for row in rows}
    assert by_step[12] == pytest.approx(bits, rel=1e-6)
