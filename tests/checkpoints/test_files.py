"""The files of a checkpoint: written atomically, refused when they are damaged or foreign, and what is resumed."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire import run
from gradwire.checkpoints import files
from gradwire.checkpoints import folder as folder_of
from gradwire.core.launchers.fork_server import start_context
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.recorder import Recorder
from gradwire.core.transports.messages import Setup
from gradwire.core.transports.pipes import wire
from gradwire.core.transports.shared_memory import SharedMemory
from gradwire.results import load_table
from tests.checkpoints.samples import options, seal
from tests.disk import note_disk
from tests.ranks import LIMIT
from tests.runs import N_TRAIN, made

pytestmark = pytest.mark.xdist_group("checkpoint_files")  # a run of the module is made once


def test_a_checkpoint_that_cannot_be_written_ends_the_run_by_name_and_leaves_the_whole_ones(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / ".step-00000006").write_text("in the way")
    with pytest.raises(RunFailed, match=r"cannot write the checkpoint .*step-00000006.*: File exists"):
        run(options(tmp_path), quiet=True)
    assert [path.name for path in folder_of.listed(folder)] == ["step-00000003"]


class RunsCode(str):
    """The path of a file, which is made when this is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path(str(self)),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(options(folder, epochs=1), quiet=True)
    return folder


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint of step 7, of a run of one rank."""
    endpoints, _ = wire(1, start_context())
    with SharedMemory(endpoints[0], Setup(torch.device("cpu"), LIMIT, Recorder(enabled=False))) as transport:
        files.save(transport, files.Target(folder, 3, {}, ["worker"]), 7, state)


def test_a_checkpoint_is_on_the_disk_before_and_after_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = note_disk(monkeypatch)
    save(tmp_path / "c", {"x": torch.zeros(3)})
    hidden = tmp_path / "c" / ".step-00000007"
    assert done == [
        ("sync", str(tmp_path)),
        ("sync", str(hidden / "rank-0.pt")),
        ("sync", str(hidden / "run.json")),
        ("sync", str(hidden)),
        ("rename", str(tmp_path / "c" / "step-00000007")),
        ("sync", str(tmp_path / "c")),
    ]


class Killed(BaseException):
    """Stands for a kill at some moment."""


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("moment", range(4))
def test_a_step_that_is_written_again_is_never_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int, exchanges: bool
) -> None:
    def write(value: float) -> None:
        save(tmp_path, {"strategy": torch.full((3,), value), "model": None, "position": {}, "random": None})

    write(1.0)
    path, left, exchange = tmp_path / "step-00000007", moment, folder_of._exchange

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            assert not exchanges or folder_of.listed(tmp_path) == [path], "there is one at every moment"
            if left == 0:
                raise Killed
            left -= 1
            return call(*arguments, **options)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(folder_of, "_exchange", dying(exchange) if exchanges else lambda *_: False)
        patch.setattr(os, "replace", dying(os.replace))
        patch.setattr(shutil, "rmtree", dying(shutil.rmtree))
        with contextlib.suppress(Killed):
            write(2.0)
    with folder_of.in_training(tmp_path):
        pass
    assert folder_of.listed(tmp_path) == [path]
    assert files.load_rank(path, 0)["strategy"][0] in (1.0, 2.0)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".training", path.name]


def of_another_model(path: Path) -> None:
    state = files.load_rank(path, 1)
    state["strategy"]["x"] = torch.zeros(3)
    torch.save(state, path / "rank-1.pt")


def flip_a_bit(file: Path, of: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(of) + len(of) - 1] ^= 2
    file.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "bit of a parameter": lambda path: flip_a_bit(
        path / "rank-1.pt", files.load_rank(path, 1)["strategy"]["x"].numpy().tobytes()
    ),
    "bit of an option": lambda path: flip_a_bit(path / "run.json", b'"epochs": 1'),  # which becomes 3
    "torn": lambda path: os.truncate(path / "rank-1.pt", (path / "rank-1.pt").stat().st_size // 2),
    "absent": lambda path: shutil.rmtree(path.parent),
    "other format": lambda path: (path / "run.json").write_text("{}"),
}
SEALED: dict[str, Callable[[Path], object]] = {  # with checksums that are right
    "code": lambda path: torch.save(RunsCode(path.parents[1] / "ran"), path / "rank-1.pt"),
    "other model": of_another_model,
}


@pytest.mark.parametrize("damage", [*DAMAGE, *SEALED])
def test_a_foreign_or_damaged_checkpoint_is_refused_in_one_line(whole: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(whole / "c", tmp_path / "c")
    path = folder_of.latest(tmp_path / "c")
    (DAMAGE | SEALED)[damage](path)
    if damage in SEALED:
        seal(path)
    with pytest.raises(UsageError, match=r"^--resume .*\Z"):
        run(options(tmp_path, resume=str(path), run_name="resumed", epochs=1), quiet=True)
    assert not (tmp_path / "ran").exists()
    assert not list(tmp_path.glob("resumed*"))


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
