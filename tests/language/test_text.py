"""Runs on text with the decoder: what they save and continue, show meanwhile, and refuse."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.checkpoints import model_files
from gradwire.core.records.errors import UsageError
from gradwire.core.records.tables import applied
from gradwire.core.workloads import datasets, models
from gradwire.language import generate
from gradwire.options import Options
from gradwire.pictures.scalars import check_tensorboard
from gradwire.results import load_events, load_table
from strategies import Strategy
from tests.checkpoints.samples import score_here, scores
from tests.runs import said_by, strategy_of
from tests.strategies.runs import made

TEXT = "a quick brown fox jumps over the lazy dog. " * 60
RING, SINGLE = strategy_of("ring_all_reduce"), strategy_of("single")


def of_text(folder: Path) -> dict[str, Any]:
    (folder / "book.txt").write_text(TEXT)
    return {
        "dataset": "textfile", "data_dir": str(folder / "book.txt"), "context": 15, "model": "gpt", "epochs": 6,
        "model_options": "layers=1,width=32", "optimizer": "adamw", "lr": 0.02, "batch_size": 4,
    }  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    made(folder, "run", SINGLE, **of_text(folder) | {"batch_size": 16}, save=str(folder / "model.pt"))
    return folder / "model.pt"


def text(path: Path, **options: float | str) -> str:
    return "".join(generate.continued(generate.Settings(str(path), **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_saved_model_is_a_state_dict_and_is_built_again(tmp_path: Path, kind: str) -> None:
    read = torch.load if kind == "pt" else pytest.importorskip("safetensors.torch").load_file
    saved = tmp_path / f"model.{kind}"
    made(tmp_path, "run", SINGLE, **of_text(tmp_path) | {"epochs": 1}, save=str(saved))
    model, made_with = model_files.load(str(saved))
    assert made_with["vocabulary"] == "".join(sorted({*TEXT}))
    state = read(saved)
    models.build("gpt", (15,), 28, "layers=1,width=32").load_state_dict(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_it_continues_what_it_has_learned_and_the_same_seed_draws_the_same(saved: Path) -> None:
    found = text(saved, prompt="a quick ", temperature=0, n_characters=20)
    assert found in TEXT
    for same in ({"top_k": 1}, {"temperature": 1e-310}):
        assert text(saved, prompt="a quick ", n_characters=20, **same) == found
    wild: dict[str, Any] = {"prompt": "the lazy dog. a quick brown", "n_characters": 15, "temperature": 9}
    first = text(saved, **wild)  # its prompt is longer than a sample
    assert (first[:27], len(first)) == (wild["prompt"], 42)
    assert text(saved, **wild) == first != text(saved, **wild, seed=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prompt": "the Cat!"}, r"^--prompt: the text of the training has no '!', 'C'; give one or more of its 28"),
        ({"prompt": ""}, "^--prompt: is empty; give one or more"),
        ({"temperature": -1}, "^--temperature -1: must be at least 0"),
        ({"n_characters": -1}, "^--n_characters -1: must be at least 0"),
    ],
)
def test_what_cannot_be_continued_is_refused(saved: Path, options: dict[str, float | str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        text(saved, **options)


def test_a_file_without_a_model_of_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(TEXT)
    own = Options(dataset="textfile", data_dir=str(tmp_path / "book.txt"), model="tests.tasks:own_loss")
    for name, options in (("points.pt", Options()), ("own.pt", own)):
        data = datasets.load(options)
        model = models.build(options.model, data.input_shape, data.n_classes)
        (tmp_path / name).write_bytes(model_files.to_bytes(model, name, options, data))
    torch.save({"x": torch.zeros(2)}, tmp_path / "other.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "points.pt").read_bytes()[:-100])
    told = {"points.pt": "was not trained on text", "own.pt": r"raised TypeError: .* argument: 'y'"}
    for name in (*told, "other.pt", "torn.pt", "absent.pt", "."):
        with pytest.raises(UsageError, match=rf"^\S+: (its model )?{told.get(name, 'is no model that --save wrote')}"):
            text(tmp_path / name, prompt="a quick", **({"model": own.model} if name == "own.pt" else {}))


def test_the_command_prints_the_text_or_one_line(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", str(saved), "--prompt", "the", "--n_characters", "9"])
    assert said_by(generate.main) == (0, text(saved, prompt="the", n_characters=9) + "\n")
    for wrong in ("--prompt The", "--n_characters x"):
        monkeypatch.setattr(sys, "argv", ["generate", str(saved), *wrong.split()])
        code, told = said_by(generate.main)
        assert (code, told.count("\n"), told[:7]) == (2, 1, "error: ")
        assert wrong.split()[0] in told


def test_checkpoints_of_text_are_scored_as_the_run_is_and_keep_their_windows_and_network(tmp_path: Path) -> None:
    where = {"checkpoint_every": 20, "checkpoint_dir": str(tmp_path / "c"), "train_size": 152, "epochs": 2}
    made(tmp_path, "run", RING, **of_text(tmp_path) | where)
    score_here(tmp_path / "c")
    own = load_table(tmp_path / "run.csv")["test_loss"].dropna()
    assert float(scores(tmp_path / "c" / "evaluation.csv")[-1]["loss"]) == pytest.approx(own.iloc[-1], rel=1e-5)
    changes: list[dict[str, Any]] = [{"context": 14}, {"model_options": "layers=1,width=32,dropout=0.1"}]
    for change in changes:
        with pytest.raises(UsageError, match=rf"^--{next(iter(change))} .* was made with"):
            made(tmp_path, "again", RING, **of_text(tmp_path) | where | {"resume": str(tmp_path / "c")} | change)


def scalars_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {name: [(scalar.step, scalar.value) for scalar in read.Scalars(name)] for name in read.Tags()["scalars"]}


@pytest.mark.parametrize("strategy", [strategy_of("async_param_server"), strategy_of("sharded_ring")])
def test_scalars_are_what_the_records_say(tmp_path: Path, strategy: Strategy) -> None:
    pytest.importorskip("tensorboard")
    changes = of_text(tmp_path) | {"epochs": 2, "train_size": 64, "lr_schedule": "cosine", "lr": 0.01}
    made(tmp_path, "run", strategy, **changes, tensorboard=str(tmp_path / "tb"))
    table, events = load_table(tmp_path / "run.csv"), load_events(tmp_path / "run")
    assert {path.name for path in (tmp_path / "tb" / "run").iterdir()} == {f"rank-{rank}" for rank in table["rank"]}
    for rank, rows in table.groupby("rank"):
        found = scalars_in(tmp_path / "tb" / "run" / f"rank-{rank}")
        start = events.query("rank == @rank and epoch == 0 and op == 'send' and phase != 'evaluate'")["bytes"].sum()
        assert found["bytes_sent"][-1][1] == pytest.approx(start + rows["bytes_sent"].sum())
        assert 0 <= min(value for _, value in found["waiting"]) <= max(value for _, value in found["waiting"]) <= 1
        for name in ("train_loss", "test_loss"):
            if rows[name].notna().any():
                assert [step for step, _ in found[name]][-1] in (rows["step"].iloc[-1], rows["step"].iloc[-1] - 1)
                assert [value for _, value in found[name]] == pytest.approx(rows[name].tolist())
        assert ("test_bits_per_character" in found) == (rank == 0)
        assert ("loss" in found) == (rows["role"].iloc[0] == "worker")
        if rank == 0:
            assert ("staleness" in found) == (len(applied(events)) > 0)
            assert found["lr"][-1][1] < found["lr"][0][1] <= 0.01


@pytest.mark.parametrize(
    ("package", "check", "told"),
    [
        ("torch.utils.tensorboard", check_tensorboard, r"^--tensorboard tb: needs tensorboard .*\[tensorboard\]'"),
        ("safetensors.torch", model_files.check_format, r"^--save m.safetensors: needs safetensors .*\[safetensors\]'"),
    ],
)
def test_what_is_optional_is_missed_by_one_line_and_only_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, check: Callable[[str], Any], told: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=told):
        check("tb" if "tensorboard" in package else "--save m.safetensors")
    made(tmp_path, "run", SINGLE, **of_text(tmp_path) | {"epochs": 1}, save=str(tmp_path / "model.pt"))
    assert torch.load(tmp_path / "model.pt", weights_only=True)
