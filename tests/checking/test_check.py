"""What a check leaves as it is, its command, and what it says of runs that fail or are cut."""

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.checking import command
from gradwire.checking.command import check
from gradwire.checking.sketch import equal, multiple, sketch, weights
from gradwire.checking.watch import Watch
from gradwire.torch_scripts.script import Function, Script
from gradwire.torch_scripts.simulate import ClusterScript, SimulatedProgram, run_on_cluster
from gradwire.virtual_time import simulate
from strategies import STRATEGIES
from tests.checking.test_scripts import SCRIPTS, checked
from tests.runs import ROOT


def train(with_mode: bool) -> tuple[list[float], int, float]:
    """Train with DDP; return all parameters, the operations that a mode sees, and a random number."""

    class Count(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(24, 5), torch.randint(2, (24,)))
    torch.manual_seed(dist.get_rank())
    mode = Count()
    for x, y in torch.utils.data.DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if with_mode:
            with mode:
                loss.backward()
                optimizer.step()
        else:
            loss.backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), mode.count, float(torch.rand(()))


@pytest.mark.parametrize("with_mode", [False, True])
def test_a_check_changes_no_bit_no_second_and_no_random_number(with_mode: bool) -> None:
    def run(is_watched: bool) -> SimulatedProgram:
        program = Function(train, (with_mode,))
        options = ClusterScript(script=program.name, n_gpus=3, flops=1e9)
        return run_on_cluster(options, program, True, False, Watch(3, program.folder) if is_watched else None)

    plain, watched = run(False), run(True)
    assert watched.results == plain.results
    assert (watched.seconds, watched.bytes) == (plain.seconds, plain.bytes)


def test_a_check_leaves_nothing_replaced() -> None:
    replaced = [
        (nn.functional, "cross_entropy"), (torch.Tensor, "mean"), (builtins, "open"), (torch, "save"),
        (nn.parallel.DistributedDataParallel, "__init__"), (torch.autograd, "_engine_run_backward"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name in replaced]
    checked("right_ddp.py")
    assert [getattr(owner, name) for owner, name in replaced] == before


def test_a_check_stops_after_so_many_steps() -> None:
    path = str(SCRIPTS / "wrong_no_sampler.py")
    watch = Watch(3, Script(path).folder, 2)
    run_on_cluster(ClusterScript(script=path, n_gpus=3, flops=1e12), Script(path), True, False, watch)
    assert [sum(step.rank == rank for step in watch.run.steps) for rank in range(3)] == [2, 2, 2]
    found = checked("wrong_no_sampler.py", steps=2)
    assert (found.failure, [finding.kind for finding in found.wrong]) == ("", ["samples overlap"])


def test_ranks_that_wait_for_a_stopped_one_are_no_failure() -> None:
    found = checked("right_gan_by_rank.py", steps=1)
    assert (found.failure, found.wrong) == ("", [])


def test_the_command_prints_and_writes_what_it_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, written = SCRIPTS / "wrong_changed_after_ddp.py", tmp_path / "found.json"
    assert command.main([str(path), "--json", str(written)]) == 1
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "ones_" in line)
    said = capsys.readouterr().out
    assert f"{path.name}:{at + 1}  {lines[at].strip()}" in said
    assert said.endswith("1 wrong\n")
    (finding,) = json.loads(written.read_text())["findings"]
    assert (finding["kind"], finding["parameter"], finding["rank"]) == ("replicas part", "2.bias", 0)


def test_notes_are_shown_when_asked_for_and_change_no_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SCRIPTS / "wrong_same_dropout.py")
    assert command.main([path]) == 0
    assert "nothing is found wrong; 1 note, shown by --notes\n" in capsys.readouterr().out
    assert command.main([path, "--notes"]) == 0
    assert "note: random numbers: dropout" in capsys.readouterr().out


def test_a_script_without_a_step_of_an_optimizer_is_said_to_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "no_steps.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n")
    assert command.main([str(script)]) == 0
    assert capsys.readouterr().out.endswith("nothing is found wrong; no optimizer took a step\n")


def test_a_run_that_fails_says_what_was_found_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "fails.py"
    script.write_text((SCRIPTS / "wrong_summed.py").read_text() + "raise ValueError('enough')\n")
    (tmp_path / "common.py").write_text((SCRIPTS / "common.py").read_text())
    assert command.main([str(script)]) == 1
    said = capsys.readouterr()
    assert "takes the sum of the gradients of 3 ranks" in said.out
    assert "1 wrong until it failed" in said.out
    assert "raised ValueError: enough, at fails.py" in said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.py"], "missing.py: cannot be run"),
        ([str(SCRIPTS / "right_ddp.py"), "--steps", "0"], "--steps 0: must be at least 1"),
        ([str(SCRIPTS / "right_ddp.py"), "--n_gpus", "0"], "--n_gpus 0: must be from 1"),
        ([str(SCRIPTS / "right_ddp.py"), "--json", "/dev/null/x.json"], "--json /dev/null/x.json: cannot be written"),
        (["ring", str(SCRIPTS / "right_ddp.py")], "gradwire check LAB FILE is now gradwire check_lab LAB FILE"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {says}")
    assert said.count("\n") == 1


def test_a_loop_has_the_results_of_its_processes(capsys: pytest.CaptureFixture[str]) -> None:
    path, environment = SCRIPTS / "right_loop.py", {**os.environ, "WORLD_SIZE": "3"}
    processes = subprocess.run(
        [sys.executable, path], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    assert command.main([str(path)]) == 0
    said = capsys.readouterr().out
    for line in processes.stdout.splitlines():
        assert f"rank 2: {line}\n" in said


def test_a_loop_of_another_number_of_ranks_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(SCRIPTS / "wrong_loop_no_sampler.py"), "--n_gpus", "2"]) == 1
    assert capsys.readouterr().err == "error: launch(work, 3): there are 2 ranks; give --n_gpus 3\n"


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [3, 4])
def test_nothing_is_found_in_a_loop_of_any_strategy(n: int) -> None:
    path = str(SCRIPTS / "right_loop.py")
    names = [name for name in STRATEGIES if name not in ("single", "dgs")]  # one rank; its momentum is an option
    found = check(ClusterScript(script=path, n_gpus=n, flops=1e12), Script(path, names))
    assert (found.wrong, found.failure) == ([], "")


def test_a_simulated_script_is_checked_beside_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--script", str(SCRIPTS / "wrong_summed.py"), "--n_gpus", "3", "--check", "--compute", "1ms"]
    assert simulate.main([*given, "--results_dir", str(tmp_path), "--run_name", "it"]) == 1
    assert "gradient is not the mean" in capsys.readouterr().out
    assert (tmp_path / "it.json").exists()
    assert simulate.main([*given, "--sweep", "n_gpus=2,3"]) == 2
    assert "--check: goes with one run; leave out --sweep" in capsys.readouterr().err


def test_nothing_is_found_in_a_program_that_spawns() -> None:
    path = str(ROOT / "tests" / "torch_scripts" / "programs" / "ddp_tutorial.py")
    found = check(ClusterScript(script=path, n_gpus=4, flops=1e12), Script(path))
    assert (found.wrong, found.failure) == ([], "")


@pytest.mark.parametrize("n", [1, 3, 16, 100, 1001])
def test_sketches_tell_unequal_from_equal_and_are_linear(n: int) -> None:
    first, second = (torch.randn(n, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert equal(sketch(first), sketch(first.clone()))
    for i in {0, n // 2, n - 1}:
        other = first.clone()
        other[i] += 1e-3 * first.norm()
        assert not equal(sketch(first), sketch(other))
    assert multiple(sketch(first), sketch(-3 * first)) == pytest.approx(-3, rel=1e-5)
    if n > 1:
        found = weights([sketch(first), sketch(second)], sketch(0.25 * first + 2 * second))
        assert found == pytest.approx([0.25, 2], rel=1e-4)
        assert multiple(sketch(first), sketch(second)) is None
