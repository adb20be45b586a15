"""Runs on text with the decoder: what they save, show meanwhile, and refuse."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from records.errors import UsageError
from records.files import load_events, load_table
from records.scalars import check_tensorboard
from records.tables import applied
from strategies import Strategy
from tests.checkpoints.samples import score_here, scores
from tests.runs import said, strategy_of
from tests.strategies.runs import made
from workloads.generate import Settings, continued

TEXT = "a quick brown fox jumps over the lazy dog. " * 60


def of_text(folder: Path) -> dict[str, Any]:
    (folder / "book.txt").write_text(TEXT)
    return {
        "dataset": "textfile", "data_dir": str(folder / "book.txt"), "context": 15, "model": "gpt", "epochs": 6,
        "model_options": "layers=1,width=32", "optimizer": "adamw", "lr": 0.02, "batch_size": 4,
    }  # fmt: skip


@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
def test_what_a_run_saves_continues_the_text_that_it_has_learned(tmp_path: Path, file: str) -> None:
    if file.endswith("safetensors"):
        pytest.importorskip("safetensors")
    facts = made(tmp_path, "run", strategy_of("ring_all_reduce"), **of_text(tmp_path), save=str(tmp_path / file))
    assert facts["options"]["model_options"] == "layers=1,width=32"
    told = "".join(continued(Settings(str(tmp_path / file), prompt="a quick ", n_characters=20, temperature=0)))
    assert told in TEXT


def test_the_checkpoints_of_text_are_scored_as_the_run_scores_itself(tmp_path: Path) -> None:
    one = strategy_of("ring_all_reduce")
    where: dict[str, Any] = {"checkpoint_every": 40, "checkpoint_dir": str(tmp_path / "c")}
    made(tmp_path, "run", one, **(of_text(tmp_path) | {"train_size": 152, "epochs": 4}), **where)
    score_here(tmp_path / "c")
    last = scores(tmp_path / "c" / "evaluation.csv")[-1]
    own = load_table(tmp_path / "run.csv")["test_loss"].dropna()
    assert float(last["loss"]) == pytest.approx(own.iloc[-1], rel=1e-5)


@pytest.mark.parametrize("change", [{"context": 14}, {"model_options": "layers=1,width=32,dropout=0.1"}])
def test_a_resumed_run_has_the_same_windows_and_network(tmp_path: Path, change: dict[str, Any]) -> None:
    where = {"checkpoint_every": 8, "checkpoint_dir": str(tmp_path / "c"), "train_size": 64, "epochs": 2}
    made(tmp_path, "run", strategy_of("ring_all_reduce"), **(of_text(tmp_path) | where))
    changed = of_text(tmp_path) | where | {"resume": str(tmp_path / "c")} | change
    with pytest.raises(UsageError, match=rf"^--{next(iter(change))} .* was made with"):
        made(tmp_path, "again", strategy_of("ring_all_reduce"), **changed)


@pytest.mark.parametrize("strategy", [strategy_of("async_param_server"), strategy_of("sharded_ring")])
def test_scalars_are_what_the_records_say(tmp_path: Path, strategy: Strategy) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changes = of_text(tmp_path) | {"epochs": 2, "lr_schedule": "cosine", "lr": 0.01}
    made(tmp_path, "run", strategy, **changes, tensorboard=str(tmp_path / "tb"))
    table, events = load_table(tmp_path / "run.csv"), load_events(tmp_path / "run")
    assert {path.name for path in (tmp_path / "tb" / "run").iterdir()} == {f"rank-{rank}" for rank in table["rank"]}
    for rank, rows in table.groupby("rank"):
        read = EventAccumulator(str(tmp_path / "tb" / "run" / f"rank-{rank}"))
        read.Reload()
        found = {name: [(one.step, one.value) for one in read.Scalars(name)] for name in read.Tags()["scalars"]}
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
            late = applied(events)
            assert ("staleness" in found) == (len(late) > 0)
            assert found["lr"][-1][1] < found["lr"][0][1] <= 0.01


def test_without_tensorboard_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"^--tensorboard tb: needs tensorboard .* -e '\.\[tensorboard\]'"):
        check_tensorboard("tb")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--dataset text", "--model mlp: takes no text; take --model gpt"),
        ("--model gpt", "--model gpt: needs a row of tokens, but a sample is (1, 8, 8); take --dataset text"),
        ("--dataset text --model gpt --model_options layers=0", "--model_options layers=0: must be at least 1"),
        ("--dataset text --model gpt --context 65 --model_options context=64", "context=64: a sample has 65 tokens"),
        ("--context 32", "--context 32: --dataset digits is no text; leave it out"),
        ("--dataset text --model gpt --context 0", "--context 0: must be at least 1"),
        ("--dataset textfile --model gpt", "--data_dir data: cannot be read"),
        ("--tensorboard /dev/null/tb", "--tensorboard: cannot write in /dev/null/tb"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, arguments: str, told: str) -> None:
    code, text = said(*arguments.split(), "--results_dir", str(tmp_path), "--n_gpus", "2")
    assert (code, text.count("\n")) == (2, 1), text
    assert told in text
    assert not any(tmp_path.iterdir())


def test_nothing_optional_is_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    before = set(sys.modules)
    made(tmp_path, "run", strategy_of("single"), **of_text(tmp_path), save=str(tmp_path / "model.pt"))
    assert not {"torch.utils.tensorboard", "safetensors.torch"} & (set(sys.modules) - before)
    assert torch.load(tmp_path / "model.pt", weights_only=True)
