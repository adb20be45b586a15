"""Checkpoints: whole or not at all, refused when foreign, and a resumed run ends where the uninterrupted one does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from param_server_builtin import BuiltinParamServer
from records.errors import UsageError
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import STRATEGIES
from training import Options, checkpoints, run

SMALL: dict[str, Any] = {
    "dataset": "tests.workload:moons", "model": "tests.workload:batch_norm", "epochs": 3, "batch_size": 16,
    "device": "cpu", "timeout": 30, "lr_schedule": "cosine", "warmup": 1.0, "checkpoint_every": 2,
    "checkpoint_keep": 100,
}  # fmt: skip
KINDS: dict[str, Any] = {
    **{name: None for name, kind in STRATEGIES.items() if kind.replicas_agree},
    **{kind.name: kind for kind in (BuiltinRingAllReduce, BuiltinParamServer)},
}


def options(tmp_path: Path, name: str, **changes: Any) -> Options:
    given = {"strategy": name, "n_gpus": 1 if name == "single" else 3, "builtin": KINDS[name], "run_name": "whole"}
    return Options(**(SMALL | given | {"results_dir": str(tmp_path)} | changes))


def hashes(tmp_path: Path, name: str) -> dict[str, str]:
    return json.loads((tmp_path / f"{name}.json").read_text())["parameter_hash"]


@pytest.mark.parametrize("name", list(KINDS))
def test_a_resumed_run_ends_bit_for_bit_as_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    run(options(tmp_path, name), quiet=True)
    found = checkpoints.listed(tmp_path / "whole.checkpoints")
    steps = [checkpoints.load_run(path)["step"] for path in found]
    last = 3 * options(tmp_path, name).resolve().plan(190).n_steps
    assert steps == list(range(2, last + 1, 2))
    for path in (found[0], found[len(found) // 2], found[-1]):  # in an epoch, at the end of one, at the very end
        run(options(tmp_path, name, resume=str(path), run_name="resumed", checkpoint_every=0), quiet=True)
        assert hashes(tmp_path, "resumed") == hashes(tmp_path, "whole")


def test_only_the_newest_are_kept_and_the_folder_names_the_newest(tmp_path: Path) -> None:
    run(options(tmp_path, "ring_all_reduce", checkpoint_keep=2, checkpoint_dir=str(tmp_path / "c")), quiet=True)
    found = checkpoints.listed(tmp_path / "c")
    assert len(found) == 2
    assert checkpoints.latest(tmp_path / "c") == found[1]
    assert {path.name for path in (tmp_path / "c").iterdir()} == {".training", *(path.name for path in found)}


class RunsCode:
    """What makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("damage", ["torn", "foreign", "code", "absent", "other format", "other strategy"])
def test_a_foreign_or_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    run(options(tmp_path, "ring_all_reduce"), quiet=True)
    path = checkpoints.latest(tmp_path / "whole.checkpoints")
    changes: dict[str, Any] = {}
    if damage == "torn":
        whole = (path / "rank-1.pt").read_bytes()
        (path / "rank-1.pt").write_bytes(whole[: len(whole) // 2])
    elif damage == "foreign":
        torch.save({"weights": torch.zeros(3)}, path / "rank-1.pt")
    elif damage == "code":
        torch.save(RunsCode(tmp_path / "ran"), path / "rank-1.pt")
    elif damage == "absent":
        shutil.rmtree(path.parent)
    elif damage == "other format":
        (path / "run.json").write_text("{}")
    else:
        changes = {"seed": 5}
    with pytest.raises(UsageError) as error:
        run(options(tmp_path, "ring_all_reduce", resume=str(path), run_name="resumed", **changes), quiet=True)
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--seed" if changes else "--resume")
