"""Names: a user's folder may have modules called as ours are, and no module of ours is called as one of Python's."""

import os
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradwire import command
from tests.ranks import LIMIT
from tests.runs import ROOT

OWN = ["records.py", "strategies.py", "evaluate.py", "train.py", "training/loop.py"]
if sys.version_info < (3, 14):  # from then on the standard library has a package of this name, which it needs
    OWN.append("compression/__init__.py")
MODULES = [name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for name in OWN]
ALL_OWN = "".join(f"import {name}\nassert {name}.WHOSE == 'mine', {name}\n" for name in MODULES)
MINE = """
import math
from dataclasses import dataclass
from torch import nn
from gradwire import Strategy
from gradwire.strategies import STRATEGIES

@dataclass(kw_only=True)
class X(STRATEGIES["ring_all_reduce"]):
    "A ring of one's own."

assert issubclass(X, Strategy)
assert all(kind.name == name for name, kind in STRATEGIES.items())

def f(input_shape, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), n_classes))
"""
LOOP = """
from functools import partial
import torch
from gradwire import STRATEGIES, WorkerOptimizer, launch

def work(transport):
    model = torch.nn.Linear(3, 1)
    strategy = STRATEGIES["ring_all_reduce"]()
    optimizer = WorkerOptimizer(model, transport, strategy, partial(torch.optim.SGD, lr=0.1))
    model(torch.full((2, 3), 1.0 + transport.rank)).sum().backward()
    optimizer.step(2)
    optimizer.finish()
    return [parameter.tolist() for parameter in model.parameters()]

if __name__ == "__main__":
    first, second = launch(work, 2)
    assert first == second
    print("alike")
"""
DDP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 3), float(dist.get_rank() + step))).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print([parameter.tolist() for parameter in model.parameters()], flush=True)

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


def write_own_modules(folder: Path) -> None:
    """Fill a folder of the user's with modules that are called as ours are, or were, and with what uses them."""
    for name in OWN:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('WHOSE = "mine"\n')
    for name, text in (("mine.py", MINE), ("mine_ddp.py", DDP), ("own_loop.py", LOOP)):
        (folder / name).write_text(ALL_OWN + text)


def output_of(*arguments: str | Path, cwd: Path, code: int = 0, **environment: Any) -> str:
    done = subprocess.run(
        [*map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=4 * LIMIT, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr if code else done.stdout


@pytest.mark.end_to_end
def test_the_users_modules_win_over_ours(tmp_path: Path) -> None:
    """Run a script of the user's, a strategy and model of theirs and a loop of theirs, beside their own modules."""
    write_own_modules(tmp_path)

    def shown_by(*arguments: str | Path) -> str:
        return output_of(sys.executable, *arguments, cwd=tmp_path, PYTHONPATH=str(ROOT))

    script = shown_by(ROOT / "simulate.py", "--script", "mine_ddp.py", "--compute", "1ms")
    assert script.startswith("rank 0: [[")
    small = ("--n_gpus", "2", "--epochs", "1", "--train_size", "64", "--device", "cpu")
    trained = shown_by(ROOT / "train.py", "--strategy", "mine:X", "--model", "mine:f", *small)
    assert trained.startswith("strategy mine:X, n_gpus 2")
    assert shown_by("own_loop.py") == "alike\n"


def test_the_clone_is_last_on_the_path_and_an_installed_package_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, installed = ROOT, tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [str(clone), str(installed), "/others"])
    assert command.path_from("/mine") == ["/mine", str(installed), "/others", str(clone)]
    (tmp_path / "gradwire").mkdir()
    (tmp_path / "gradwire" / "command.py").write_text("")
    sys.path.append(str(tmp_path))
    expected = ["/mine", str(installed), "/others", str(clone), str(tmp_path)]
    assert command.path_from("/mine") == expected, "new processes load this copy of the package"
    monkeypatch.setattr(command, "_ROOT", installed)
    assert command.path_from("/mine") == ["/mine", str(clone), str(installed), "/others", str(tmp_path)]


# Names of ours


def test_no_module_or_folder_is_called_as_one_of_the_standard_library() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=True)
    ours = {name.split("/")[0].removesuffix(".py") for name in listed.stdout.splitlines()}
    assert {"gradwire", "strategies", "train", "tests"} <= ours
    assert ours & {*sys.stdlib_module_names, "compression", "profiling"} == set(), "3.14 and 3.15 have them too"


# The command

MODULES_OF = {name: module for group in command.COMMANDS.values() for name, (module, _) in group.items()}


def test_the_help_of_the_command_is_one_screen_and_loads_nothing_large() -> None:
    code = "import sys; from gradwire.command import main; main(['--help']); print(sorted(sys.modules))"
    *lines, modules = output_of(sys.executable, "-c", code, cwd=ROOT).splitlines()
    assert len(lines) <= 45
    for name, module in MODULES_OF.items():
        assert [line for line in lines if line.startswith(f"  {name} ")], "it is listed"
        assert find_spec(module) is not None
    assert "'gradwire.command'" in modules
    for large in ("torch", "numpy", "pandas", "tyro"):
        assert f"'{large}'" not in modules


FORMER = {
    **{f"records.{name}": name for name in ("page", "compare", "plot", "timeline", "staleness", "why")},
    **{f"workloads.{name}": name for name in ("generate", "sample_images")},
    "workloads.pack_text": "gradwire.language.pack_text", "training.pages": "docs.pages",
}  # fmt: skip


def test_what_former_commands_name_is_there() -> None:
    for former, new in FORMER.items():
        assert (ROOT / f"{former.replace('.', '/')}.py").exists()
        assert new in MODULES_OF or find_spec(new) is not None


@pytest.mark.parametrize("former", ["records.page", "training.pages", "scoreboard.py"])
def test_a_former_command_names_the_new_one(former: str) -> None:
    new = FORMER.get(former, "scoreboard")
    words = [former] if former.endswith(".py") else ["-m", former]
    said = output_of(sys.executable, *words, "results/ring", cwd=ROOT, code=2)
    now = new if "." in new else f"gradwire {new}"
    assert said == f"error: {' '.join(['python', *words])} is now python -m {now}\n"


@pytest.mark.parametrize("name", ["records", "workloads", "training"])
def test_the_folders_of_former_commands_hide_no_module_of_the_users(tmp_path: Path, name: str) -> None:
    ours = PathFinder.find_spec(name, [str(ROOT)])
    assert ours is not None
    assert ours.origin is None, "a folder is no package"
    for file in (f"{name}.py", f"{name}/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("")
        found = PathFinder.find_spec(name, [str(ROOT), str(tmp_path)])
        assert found is not None
        assert found.origin == str(tmp_path / file)
        (tmp_path / file).unlink()
