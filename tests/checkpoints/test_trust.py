"""Code that a file of somebody else names: it is not loaded unless the user stands beside it or names it too."""

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.checkpoints import evaluate, files, model_files
from gradwire.checkpoints import folder as folder_of
from gradwire.core.records.errors import UsageError
from gradwire.every_order import explore
from gradwire.recorded import NAMING_CODE
from tests.runs import made, said, said_by
from tests.selection import by_default

pytestmark = pytest.mark.xdist_group("trust")  # a run of the module is made once
PLAIN: dict[str, Any] = {"dataset": "digits", "model": "mlp", "train_size": 64, "n_gpus": 3, "epochs": 1}
EVIL = "open('owned', 'w').close()\nfrom tests.workload import linear, moons\n"


def evil(folder: Path) -> str:
    """Return the name of the module beside the record, which no other test has imported."""
    return f"stranger_{folder.name}.evil"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with checkpoints."""
    made(folder := tmp_path_factory.mktemp("run"), "async_param_server", checkpoint_every=1, **PLAIN)
    return folder


@pytest.fixture
def record(own_module: Callable[[str], str], tmp_path: Path, run: Path) -> Callable[[str, str], str]:
    """Give a function that copies a run with its checkpoints and changes an option of all; the module beside them."""
    folder = Path(shutil.copytree(run, tmp_path / f"stranger_{tmp_path.name}"))
    (folder / "evil.py").write_text(EVIL)

    def change(option: str, value: str) -> str:
        for place in (folder, *folder_of.listed(folder / "run.checkpoints")):
            path = place / "run.json"
            content = json.loads(path.read_text())
            content["options"][option] = value
            path.write_text(json.dumps(files.sealed(content) if "checksums" in content else content))
        return f"stranger_{tmp_path.name}/run"

    return change


@pytest.mark.parametrize(("option", "module"), [*((option, "") for option in NAMING_CODE), ("model", "subprocess")])
def test_code_that_a_record_names_is_loaded_from_the_current_folder_only(
    option: str, module: str, record: Callable[[str, str], str], tmp_path: Path
) -> None:
    module = module or evil(tmp_path)
    path = record(option, f"{module}:linear")
    for given in (("--replay", path), ("--resume", f"{path}.checkpoints")):
        code, text = said(*given)
        assert (code, text.count("\n")) == (2, 1), text
        assert f"names the code '{module}:linear', which is no file of the current folder" in text
        assert f"name it by --{option}" in text
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("where", ["current folder", "command line"])
def test_code_that_the_user_has_or_names_is_loaded(
    where: str, record: Callable[[str, str], str], own_module: Callable[[str], str], tmp_path: Path
) -> None:
    module = own_module(EVIL) if where == "current folder" else evil(tmp_path)
    path = record("dataset", f"{module}:absent")
    named = [] if where == "current folder" else ["--dataset", f"{module}:absent"]
    assert f"{module}:absent" in said("--replay", path, *named)[1]
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("option", by_default(["model"], ["dataset", "model", "task"]))
def test_the_evaluator_loads_code_that_is_named_to_it(
    option: str, record: Callable[[str, str], str], tmp_path: Path
) -> None:
    checkpoints = Path(f"{record(option, evil(tmp_path) + ':absent')}.checkpoints")
    for given in ([], [f"--{option}={evil(tmp_path)}:absent"]):
        assert not (tmp_path / "owned").exists()
        code, text = said_by(lambda given=given: evaluate.main(["--checkpoint_dir", str(checkpoints), *given]))  # type: ignore[misc]
        assert code == 1
        assert ("names the code" in text) == (not given)
    assert (tmp_path / "owned").exists()
    assert (
        f"--{option} a:b"
        in said_by(lambda: evaluate.main(["--checkpoint_dir", str(checkpoints), f"--{option}=a:b"]))[1]
    )


def test_an_order_names_code_in_the_current_folder_only(record: Callable[[str, str], str], tmp_path: Path) -> None:
    path = record("strategy", f"{evil(tmp_path)}:Mine")
    content = json.loads((tmp_path / f"{path}.json").read_text())
    (tmp_path / f"{path}.json").write_text(json.dumps(content | {"order": {}}))
    code, text = said_by(lambda: explore.main(["--replay", path]))
    assert (code, text.count("\n"), "names the code" in text) == (2, 1, True), text
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_model_file_calls_no_code_that_the_user_does_not_name(
    kind: str, own_module: Callable[[str], str], tmp_path: Path
) -> None:
    file = str(tmp_path / f"model.{kind}")
    owns = {"model": "subprocess:call", "input_shape": ["touch", str(tmp_path / "owned")], "n_classes": 0}
    names = owns | {"model_options": "", "vocabulary": "ab"}
    if kind == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(
            {"x": torch.zeros(1)}, file, {"made_with": json.dumps(names)}
        )
    else:
        state = OrderedDict(x=torch.zeros(1))
        state.made_with = json.dumps(names)  # type: ignore[attr-defined]
        torch.save(state, file)
    with pytest.raises(UsageError, match=r"its model is 'subprocess:call', which is code; if you trust it"):
        model_files.load(file)
    module = own_module(EVIL)
    with pytest.raises(UsageError, match=rf"^--model {module}:linear: .* has the model 'subprocess:call'"):
        model_files.load(file, f"{module}:linear")
    assert not (tmp_path / "owned").exists()
