"""The files of a checkpoint: written atomically, and refused when they are damaged or foreign."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import files
from checkpoints import folder as folder_of
from launchers.fork_server import start_context
from records.errors import RunFailed, UsageError
from tests.checkpoints.samples import options, score_here, seal, start
from tests.disk import note_disk
from tests.ranks import LIMIT
from training import run
from transports.pipes import wire
from transports.shared_memory import SharedMemory

pytestmark = pytest.mark.xdist_group("checkpoint_files")  # a run of the module is made once

__all__ = ["start"]


def test_a_checkpoint_that_cannot_be_written_ends_the_run_by_name_and_leaves_the_whole_ones(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / ".step-00000006").write_text("in the way")
    with pytest.raises(RunFailed, match=r"cannot write the checkpoint .*step-00000006.*: File exists"):
        run(options(tmp_path), quiet=True)
    assert [path.name for path in folder_of.listed(folder)] == ["step-00000003"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_full_disk_is_told_by_its_name() -> None:
    with pytest.raises(OSError, match=r"No space left on device: '/dev/full'"):
        files._write(Path("/dev/full"), b"x")


class RunsCode:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(options(folder, epochs=1), quiet=True)
    return folder


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["rank-0.pt", "rank-1.pt", "run.json"])
def test_a_flipped_bit_is_refused_in_one_line(whole: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(whole / "c", tmp_path / "c")
    path = folder_of.latest(tmp_path / "c")
    content = (path / name).read_bytes()
    if name == "run.json":
        flip(path / name, 8 * content.index(b'"epochs": 1') + 8 * len('"epochs": ') + 1)  # 1 becomes 3
    else:
        x = files.load_rank(path, int(name[5]))["strategy"]["x"]
        flip(path / name, 8 * content.index(x.numpy().tobytes()) + 20)  # of the first parameter's exponent
    with pytest.raises(UsageError, match=rf"^--resume .*{name} is damaged.*does not have its checksum") as error:
        run(options(tmp_path, resume=str(path), run_name="resumed", epochs=3), quiet=True)
    assert "\n" not in str(error.value)
    with pytest.raises(RunFailed, match="1 of the checkpoints could not be scored"):
        score_here(tmp_path / "c")


def test_a_checkpoint_is_on_the_disk_before_and_after_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, _ = wire(1, start_context())
    done = note_disk(monkeypatch)
    with SharedMemory(endpoints[0], torch.device("cpu"), LIMIT, None) as transport:
        files.save(transport, files.Target(tmp_path / "c", 3, {}, ["worker"]), 7, {"x": torch.zeros(3)})
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
        endpoints, _ = wire(1, start_context())
        with SharedMemory(endpoints[0], torch.device("cpu"), LIMIT, None) as transport:
            state: dict[str, Any] = {"strategy": torch.full((3,), value), "model": None, "position": {}, "random": None}
            files.save(transport, files.Target(tmp_path, 3, {}, ["worker"]), 7, state)

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
    assert sorted(one.name for one in tmp_path.iterdir()) == [".training", path.name]


@pytest.mark.parametrize(
    "damage",
    ["torn", "foreign", "code", "absent", "other format", "other model", "other step", "other type", "one byte",
     "endless epoch"],
)  # fmt: skip
def test_a_foreign_or_damaged_checkpoint_is_refused_in_one_line(whole: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(whole / "c", tmp_path / "c")
    path = folder_of.latest(tmp_path / "c")
    if damage == "torn":
        content = (path / "rank-1.pt").read_bytes()
        (path / "rank-1.pt").write_bytes(content[: len(content) // 2])
    elif damage == "one byte":
        (path / "rank-1.pt").write_bytes(b"\x80")
    elif damage == "foreign":
        torch.save({"weights": torch.zeros(3)}, path / "rank-1.pt")
    elif damage == "code":
        torch.save(RunsCode(tmp_path / "ran"), path / "rank-1.pt")
    elif damage == "absent":
        shutil.rmtree(path.parent)
    elif damage == "other format":
        (path / "run.json").write_text("{}")
    elif damage == "other type":
        run_json = (path / "run.json").read_text()
        (path / "run.json").write_text(run_json.replace('"seed": 0', '"seed": "zero"'))
        seal(path)
    else:
        state = files.load_rank(path, 1)
        state["strategy"]["x"] = torch.zeros(3) if damage == "other model" else state["strategy"]["x"]
        if damage == "endless epoch":
            state["position"]["epoch"] = float("inf")
        else:
            state["position"]["step"] = 1
        torch.save(state, path / "rank-1.pt")
    if damage in ("foreign", "code", "other model", "other step"):
        seal(path)
    with pytest.raises(UsageError, match=r"^--resume ") as error:
        run(options(tmp_path, resume=str(path), run_name="resumed", epochs=1), quiet=True)
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("resumed*"))
