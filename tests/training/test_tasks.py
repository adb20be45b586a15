"""A task says what the loss is a mean of and what is scored: ranks are weighted by it, and every table shows it."""

import csv
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from records import compare
from records.files import load_events, load_table
from records.finished import find_runs
from records.plot import picture
from tests import tasks
from tests.checkpoints.samples import score_here
from tests.runs import BUILTIN, made, n_gpus_of, said, small, strategy_of
from training import run
from training.optimizers import schedule
from virtual_time.cluster import Compute
from virtual_time.launcher import VirtualTime
from virtual_time.network import OneSwitch
from workloads.batches import BatchPlan
from workloads.tasks import IGNORED

LINES: dict[str, Any] = {
    "dataset": "tests.tasks:lines", "model": "tests.tasks:language", "task": "language_model", "dtype": "float64",
    "global_batch_size": 12, "epochs": 3, "lr": 0.5, "momentum": 0.5,
    "lr_schedule": "cosine",
}  # fmt: skip
HEIGHTS: dict[str, Any] = {"dataset": "tests.tasks:heights", "model": "tests.workload:linear", "batch_size": 8}


def trained(folder: Path, name: str, real: bool = False, **changes: Any) -> dict[str, torch.Tensor]:
    """Run it with three workers, in virtual time if not in processes; return the final model."""
    strategy = strategy_of(name, **({"workers_like": 3} if name == "single" else {}))
    n_gpus, saved = n_gpus_of(name, 3), folder / f"{real}.pt"
    given = {"run_name": f"{name}-{real}", "n_gpus": n_gpus, "save": str(saved), **LINES, **changes}
    options = small(folder, strategy, **given)
    launcher = None if real else VirtualTime(OneSwitch(n_gpus, 1e7, 1e-4), Compute(options, {})).launcher()
    run(options, quiet=True, launcher=launcher)
    state: dict[str, torch.Tensor] = torch.load(saved, weights_only=True)
    return state


@functools.cache
def by_hand() -> tuple[dict[str, torch.Tensor], list[float]]:
    """The model that plain PyTorch trains on whole batches, the loss being the mean over their tokens; its losses."""
    x, y, test_x, test_y = tasks.lines()
    torch.manual_seed(0)
    model = tasks.language((tasks.LENGTH,), tasks.TOKENS).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LINES["lr"], momentum=LINES["momentum"])
    plan, losses, epochs = BatchPlan(len(x), 3, LINES["global_batch_size"], 0), [], LINES["epochs"]
    of_a_sample = round(int((y[:2] != IGNORED).sum()) / 2)
    factor = schedule("cosine", epochs * len(x) * of_a_sample, 0)
    for epoch in range(epochs):
        for step in range(plan.n_steps):
            part, samples = plan.part(epoch + 1, step), epoch * len(x) + plan.bounds(step)[0]
            n = int((y[part] != IGNORED).sum())
            optimizer.param_groups[0]["lr"] = LINES["lr"] * factor(samples * of_a_sample + n / 2)
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]).flatten(0, 1), y[part].flatten()).backward()
            optimizer.step()
        losses.append(F.cross_entropy(model(test_x).flatten(0, 1), test_y.flatten()).item())
    return model.state_dict(), losses


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], bits: bool = False) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0 if bits else 1e-11, atol=0 if bits else 1e-12)


SYNCHRONOUS = ("single", "ring_all_reduce", "param_server", "sharded_ring", "overlapped_ring", *BUILTIN)


@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ranks_with_unequal_numbers_of_tokens_take_the_steps_of_one_process_on_whole_batches(
    tmp_path: Path, name: str, accumulate: int
) -> None:
    state, (expected, losses) = trained(tmp_path, name, name in BUILTIN, accumulate=accumulate), by_hand()
    assert_equal(state, expected)
    table = load_table(tmp_path / f"{name}-{name in BUILTIN}.csv").dropna(subset="test_loss")
    assert table["test_loss"].tolist() == pytest.approx(losses, rel=1e-12)
    assert table["test_bits_per_character"].tolist() == pytest.approx([loss / math.log(2) for loss in losses])
    assert table["test_perplexity"].tolist() == pytest.approx([math.exp(loss) for loss in losses])
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["ring_all_reduce", "param_server"])
def test_processes_have_the_bits_of_virtual_time(tmp_path: Path, name: str) -> None:
    assert_equal(trained(tmp_path, name, real=True), trained(tmp_path, name), bits=True)


def test_what_does_not_wait_counts_samples_and_ends_an_epoch_with_them(tmp_path: Path) -> None:
    trained(tmp_path, "async_param_server")
    server = load_table(tmp_path / "async_param_server-False.csv").query("role == 'server'")
    assert server["samples"].sum() == pytest.approx(3 * 42, abs=8), "of each of 3 workers a part of 4 may be too many"


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = trained(tmp_path, "param_server", checkpoint_every=6, checkpoint_dir=str(tmp_path / "c"), checkpoint_keep=9)
    on = trained(tmp_path / "on", "param_server", resume=str(tmp_path / "c" / "step-00000006"))
    assert_equal(on, whole, bits=True)
    before, after = (load_table(folder / "param_server-False.csv") for folder in (tmp_path, tmp_path / "on"))
    losses = [table.query("epoch == 2 and role == 'worker'")["train_loss"].tolist() for table in (before, after)]
    assert losses[0] == losses[1]


# A function of the user's


def test_a_users_function_gives_the_same_as_the_task_that_is_here(tmp_path: Path) -> None:
    own = trained(tmp_path / "own", "ring_all_reduce", task="tests.tasks:masked")
    assert_equal(own, trained(tmp_path, "ring_all_reduce"))
    assert load_table(tmp_path / "own" / "ring_all_reduce-False.csv")["test_right"].dropna().between(0, 1).all()


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("regression", "tests.workload:linear"),
        ("own", "tests.tasks:own_loss"),
        ("contrastive", "tests.workload:linear"),
    ],
)
def test_regression_a_model_with_its_own_loss_and_a_contrastive_one_learn(
    tmp_path: Path, task: str, model: str
) -> None:
    facts = made(tmp_path, "ring_all_reduce", n_gpus=2, task=f"tests.tasks:{task}", **HEIGHTS | {"model": model})
    losses = load_table(tmp_path / "run.csv")["test_loss"].dropna().tolist()
    assert losses[-1] < 0.9 * losses[0] or task == "contrastive", losses
    assert (facts["task"], facts["better"], facts["test_loss"]) == (f"tests.tasks:{task}", {}, losses[-1])


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


def arguments(options: dict[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


# What is shown


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
