"""`--memory`: what a run records of the memory of its ranks."""

import base64
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import run
from gradwire.baselines.fully_sharded_builtin import BuiltinFullySharded
from gradwire.compression import Float16
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.updater import Updater
from gradwire.diagnosis.memory import Memory
from gradwire.diagnosis.memory_use import SUFFIX, load_changes
from gradwire.pictures.compare import compare
from gradwire.pictures.finished import find_runs, load
from gradwire.pictures.page import make_page
from strategies import FullySharded, ParamServer, RingAllReduce, ShardedGradients, ShardedRing, Strategy
from tests.ranks import virtual_time
from tests.runs import metadata, small

P = 4 * (2 * 64 + 64 + 64 * 2 + 2)  # bytes of `wide`
LARGEST = 4 * 2 * 64  # of its tensors
MODEL: dict[str, Any] = {"model": "tests.diagnosis.test_memory_of_runs:wide", "memory": True, "epochs": 2}


def wide(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(input_shape[0], 64), nn.Tanh(), nn.Linear(64, n_classes))


def memory_of(folder: Path, strategy: Strategy, virtual: bool = True, n_gpus: int = 3, **changes: Any) -> Any:
    launcher = virtual_time(n_gpus).launcher() if virtual else None
    run(small(folder, strategy, n_gpus=n_gpus, **(MODEL | changes)), quiet=True, launcher=launcher)
    return metadata(folder)["memory"]


@pytest.mark.parametrize(("optimizer", "vectors", "numbers"), [("sgd", 1, 0), ("adamw", 2, 4), ("rmsprop", 1, 4)])
def test_parameters_gradients_and_state_are_their_closed_forms(
    tmp_path: Path, optimizer: str, vectors: int, numbers: int
) -> None:
    for strategy, servers, share in ((RingAllReduce(), 0, 1), (ShardedRing(), 0, 3), (ParamServer(), 1, 1)):
        found = memory_of(tmp_path / strategy.name, strategy, optimizer=optimizer)
        for rank, recorded in found.items():
            most = recorded["most"]
            assert most["parameters"] == P
            updates, trains = not servers or int(rank) == 0, not servers or int(rank) > 0
            assert most["gradients"] == P + trains * LARGEST, "no more than one gradient is held twice"
            chunks = torch.empty(P // 4, device="meta").tensor_split(share)
            own = chunks[(int(rank) + 1) % share].nbytes
            assert most.get("optimizer state", 0) == (vectors * own + numbers if updates else 0), (strategy, rank)
            assert sum(recorded["at_peak"].values()) == recorded["peak"]


@pytest.mark.parametrize("strategy", [ShardedGradients(), FullySharded()], ids=lambda strategy: strategy.name)
def test_what_is_sharded_is_a_chunk_of_each_block_and_one_whole_block_at_a_time(
    tmp_path: Path, strategy: Strategy
) -> None:
    found, block = memory_of(tmp_path, strategy, optimizer="adamw"), 4 * (2 * 64 + 64)  # bytes of the larger one
    for rank, recorded in found.items():
        chunks = [torch.empty(n, device="meta").tensor_split(3) for n in (2 * 64 + 64, 64 * 2 + 2)]
        own = sum(of[(int(rank) + 1) % 3].nbytes for of in chunks)
        whole = not isinstance(strategy, FullySharded)  # of x
        assert recorded["at_peak"]["parameters"] == (P if whole else own)
        assert recorded["most"].get("gathered parameters", 0) == (0 if whole else block)
        assert recorded["most"]["gradients"] == own + block
        assert recorded["most"]["buckets"] == block
        assert recorded["most"]["optimizer state"] == 2 * own + 4 * (2 if whole else 1)
    epochs = 0 if whole else MODEL["epochs"]  # at whose ends x is gathered for the evaluation
    assert metadata(tmp_path)["evaluate_bytes"] // ((3 - 1) * P) == epochs


def test_the_changes_of_one_step_are_recorded_and_drawn_on_the_page(tmp_path: Path) -> None:
    found, path = memory_of(tmp_path, FullySharded(), optimizer="adamw"), tmp_path / "run"
    changes = load_changes(f"{path}{SUFFIX}")
    heights = changes.groupby("rank")["bytes"].apply(lambda of: of.cumsum().max())
    assert heights.to_dict() == {int(rank): recorded["peak"] for rank, recorded in found.items()}
    last = changes.groupby(["rank", "kind"])["bytes"].sum()
    assert (last >= 0).all(), "no more goes than came"
    assert "peak MB" in compare(find_runs([f"{path}.json"]), 100)
    text = make_page([load(str(path))])
    assert "<details><summary>Memory of rank" in text
    (image,) = re.findall(r'<img class="memory" alt="Memory of [^"]*" src="data:image/png;base64,([^"]*)">', text)
    assert base64.b64decode(image).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "strategy", [pytest.param(FullySharded(), marks=pytest.mark.exhaustive), ParamServer()], ids=attrgetter("name")
)
def test_processes_and_virtual_time_have_the_same_numbers(tmp_path: Path, strategy: Strategy) -> None:
    codec: dict[str, Any] = {} if isinstance(strategy, ShardedRing) else {"codec": Float16()}
    real, found = (
        memory_of(tmp_path / str(virtual), strategy, virtual, optimizer="adamw", **codec) for virtual in (False, True)
    )
    assert real == found
    assert set(found) == {"0", "1", "2"}
    workers = [found[rank] for rank in "12"]
    assert all(worker["most"]["activations"] > 16 * 64 * 4 for worker in workers), "the hidden layer of a batch"
    assert all(("messages" in worker["most"]) == bool(codec) for worker in workers), (
        "codes are copied where peers read them"
    )


def test_fsdp2_is_counted_by_what_each_rank_has_of_its_tensors(tmp_path: Path) -> None:
    for recorded in memory_of(tmp_path, BuiltinFullySharded(), virtual=False, n_gpus=2, optimizer="adamw").values():
        assert recorded["at_peak"]["parameters"] == recorded["most"]["gradients"] == P // 2
        assert recorded["most"]["optimizer state"] == 2 * P // 2 + 4 * 4, "and the steps of its tensors"
        assert recorded["most"]["gathered parameters"] == 4 * (2 * 64 + 64), "the larger block"
        assert "temporaries" not in recorded["at_peak"], "a DTensor that wraps a part has no memory of its own"


def test_the_temporaries_of_an_update_are_much_shorter_than_x() -> None:
    n = 2**20
    with Memory(recorder := Recorder()) as memory:
        updater, g = Updater([torch.zeros(n)], torch.optim.AdamW, 0.0, None, recorder), torch.ones(n)
        updater.step(g, 1)
        memory.begin_training()
        held = memory.total
        updater.step(g, 1)
    assert 0 < memory.use().peak - held <= 3 * 4 * n / 16
