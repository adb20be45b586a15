"""Options given as functions and classes: from a script or notebook too, with the results of the same by name."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Options, UsageError, run
from gradwire.core.workloads.lookup import UserObject, import_user_object
from strategies import RingAllReduce
from tests import workload
from tests.ranks import LIMIT
from tests.runs import ROOT, metadata, said, small

CELL = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import dataclass
import torch
from torch import nn
from gradwire import ClusterOptions, Options, Strategy, run
from gradwire.virtual_time.simulate import simulate
from strategies import RingAllReduce

scale = 0.5

class Points(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.x[i].sum() > 0)

def points():
    return Points(100), Points(40)

class Net(nn.Module):
    def __init__(self, input_shape, n_classes):
        super().__init__()
        self.linear = nn.Linear(input_shape[0], n_classes)

    def forward(self, x):
        return scale * self.linear(x)

def distance(model, x, y):
    return nn.functional.cross_entropy(model(x), y), len(x), {{"one": 1.0}}

def descent(named):
    return torch.optim.SGD([p for _, p in named], lr=0.3)

@dataclass(kw_only=True)
class Mine(RingAllReduce):
    pass

same = dict(n_gpus=2, epochs=1, batch_size=10, device="cpu", strategy=Mine(), results_dir="results", seed=3)
given = dict(model=Net, dataset=points, task=distance, optimizer=descent)
named = {{name: f"__main__:{{value.__name__}}" for name, value in given.items()}}
saved = dict(save="model.pt", checkpoint_every=2, checkpoint_dir="checkpoints")
tables = [
    run(Options(**same, **given, **saved, run_name="given"), quiet=True),
    run(Options(**same, **named, run_name="named"), quiet=True),
    simulate(Options(**same, **given, run_name="simulated"), ClusterOptions(compute="1ms"), quiet=True).table,
    run(Options(**same, **given, run_name="resumed", resume="checkpoints/step-00000002"), quiet=True),
]
print([float(table["test_loss"].iloc[0]) for table in tables])
"""


def losses(shown: str, folder: Path) -> list[float]:
    """Check the records that CELL leaves; return the losses that it shows."""
    recorded = json.loads((folder / "results" / "given.json").read_text())["options"]
    names = {"model": "Net", "dataset": "points", "task": "distance", "optimizer": "descent", "strategy": "Mine"}
    assert {name: recorded[name] for name in names} == {name: f"__main__:{value}" for name, value in names.items()}
    assert torch.load(folder / "model.pt", weights_only=True)["linear.weight"].shape == (2, 2)
    found: list[float] = json.loads(shown)
    return found


@pytest.mark.end_to_end
def test_a_script_trains_what_it_defines_given_or_named(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(CELL.format(root=str(ROOT)))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(set(losses(done.stdout, tmp_path))) == 1
    code, text = said("--resume", str(tmp_path / "checkpoints"), "--results_dir", str(tmp_path), "--run_name", "again")
    assert (code, text.count("\n")) == (2, 1)
    assert "names '__main__:Mine', of the script or notebook that made the run; go on from there" in text


def test_what_is_given_trains_as_what_is_named(tmp_path: Path) -> None:
    def model(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return workload.linear(input_shape, n_classes)

    hashes = []
    given: dict[str, Any] = {"model": model, "dataset": workload.moons}
    options: dict[str, Any]
    for name, options in (("named", {}), ("given", given)):
        run(small(tmp_path, n_gpus=2, run_name=name, **options), quiet=True)
        hashes.append(metadata(tmp_path, name)["parameter_hash"])
    assert hashes[0] == hashes[1]
    assert metadata(tmp_path, "given")["options"]["dataset"] == "tests.workload:moons"


@pytest.mark.parametrize(
    ("value", "name", "importable"),
    [
        (workload.linear, "tests.workload:linear", True),
        (lambda *shape: workload.linear(*shape), "tests.core.training.test_objects:<lambda>", False),
        (partial(workload.linear, (2,)), "functools:partial(...)", False),
    ],
)
def test_an_object_is_recorded_by_its_name(value: Callable[..., Any], name: str, importable: bool) -> None:
    model = Options(model=value).model
    assert (model, model.value, model.is_importable) == (name, value, importable)
    assert type(json.loads(json.dumps(Options(model=value).recorded()))["model"]) is str


def test_an_optimizer_of_torch_is_taken_by_its_class() -> None:
    assert Options(optimizer=torch.optim.AdamW).optimizer == "adamw"
    assert isinstance(Options(optimizer=partial(torch.optim.AdamW, lr=0.1)).optimizer, UserObject)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": nn.Linear(2, 2)}, "--model: is a Linear; give a name, or the function or class that makes it"),
        ({"dataset": (1, 2)}, "--dataset: is a tuple; give a name"),
        ({"strategy": RingAllReduce}, r"--strategy: is <class .*RingAllReduce'>; give an instance of a class"),
        ({"codec": "topk"}, "--codec: is 'topk'; give an instance of a class"),
    ],
)
def test_what_is_no_function_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"^{told}"):
        Options(**options)


def test_a_name_that_main_lacks_is_told() -> None:
    with pytest.raises(
        UsageError, match=r"^--model __main__:nowhere: this program has no nowhere; define it in a module"
    ):
        import_user_object("--model", "__main__:nowhere")
