"""What a rank of a script has of its own, as a process has, and what it is told."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts.virtual import Cluster
from gradwire.virtual_time import simulate
from tests.runs import said_by
from tests.torch_scripts import SCRIPTS, at, run_script

FILE = "own_process.py"


def run(*arguments: str, path: str | Path = FILE) -> Cluster:
    return run_script(path, *arguments)


@pytest.mark.parametrize("name", ["folder", "dtype", "warnings", "signals", "children"])
def test_a_rank_has_as_its_own_what_a_process_has(name: str) -> None:
    before = Path.cwd()
    run(name)
    assert Path.cwd() == before


def test_a_sleep_takes_virtual_time() -> None:
    assert [round(rank.clock) for rank in run("clocks").ranks] == [1000, 1001]


def test_bytes_are_written_as_lines_of_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    run("output")
    assert sorted(capsys.readouterr().out.splitlines()) == ["rank 0: Zürich 0", "rank 1: Zürich 1"]


def test_a_rank_that_leaves_at_once_ends_alone(tmp_path: Path) -> None:
    run("leaves", str(tmp_path / "other"))
    assert (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("forks", f"raised NotImplementedError: os.fork: ranks are threads of one process, of which a fork has only "
                  f"one; start a subprocess, at {at(FILE, 'os.fork()')}"),
        ("nobody", f"raised ValueError: send to rank 99: the group has ranks 0 to 1, at {at(FILE, ', 99)')}"),
    ],
)  # fmt: skip
def test_what_no_rank_can_do_is_told(name: str, says: str) -> None:
    with pytest.raises(RunFailed) as failed:
        run(name)
    assert str(failed.value) == f"rank 0 {says}"


def test_a_wait_with_a_limit_ends_at_that_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    run("late")
    place = at(FILE, "dist.barrier(group)")
    assert (
        f"after 7 s: virtual process group: Timed out waiting 7000ms: rank 0 waits in barrier at {place} for rank 1"
        in (capsys.readouterr().out)
    )


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n"])
def test_a_script_may_say_its_coding(head: bytes, tmp_path: Path) -> None:
    coding = "utf-8" if head.startswith(b"\xef") else "latin-1"
    (tmp_path / "script.py").write_bytes(head + "assert len('ü') == 1".encode(coding))
    run(path=tmp_path / "script.py")


def test_a_step_is_one_of_the_optimizer() -> None:
    rank = run("accumulates").ranks[0]
    assert (len(rank.passes), len(rank.steps)) == (6, 3)
    assert rank.steps == rank.passes[1::2]
    rows = rank.recorder.frame()
    assert rows[rows["phase"] == "backward"]["step"].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_process_that_runs_a_function_of_the_script_is_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    method = multiprocessing.get_start_method(allow_none=True)
    run(path="starts_processes.py")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [f"rank {rank}: {text}" for rank in range(2) for text in ("[0, 0]", f"rank {rank} has 1.0")]
    assert multiprocessing.get_start_method(allow_none=True) == method


@pytest.mark.parametrize("name", ["accelerate", "ignite"])
def test_each_rank_has_what_a_library_keeps_for_its_process(name: str) -> None:
    pytest.importorskip(name)
    run(name)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("my_package.train", "rank 0: 5 my_package ['a']"),
        ("my_package", "rank 0: 5 my_package ['a']"),
        (
            "my_package.nowhere",
            "--script -m my_package.nowhere: there is no such module; give a module that `python -m` finds",
        ),
        ("nowhere.train", "--script -m nowhere.train: No module named 'nowhere'; give a module"),
    ],
)
def test_a_module_is_run_as_by_python(module: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "other.py").write_text("x = 5")
    for name in ("__main__", "train"):
        (tmp_path / "my_package" / f"{name}.py").write_text(
            "import sys\nfrom .other import x\nassert __name__ == '__main__'\nprint(x, __package__, sys.argv[1:])"
        )
    monkeypatch.chdir(tmp_path)
    code, text = said_by(lambda: simulate.main(["--script", "-m", module, "--compute=1ms", "--", "a"]))
    assert (code, says in text) == (2 if "nowhere" in module else 0, True), text


def test_a_script_for_gpus_runs_on_the_cpu_if_it_is_told_to(tmp_path: Path) -> None:
    given = ["--script", str(SCRIPTS / "on_gpus.py"), "--compute=1ms"]
    code, text = said_by(lambda: simulate.main([*given, "--on_cpu", f"--results_dir={tmp_path}"]))
    assert (code, "rank 1: cpu True" in text) == (0, True), text
    assert text.startswith("--on_cpu: cuda and nccl mean the CPU and gloo to the script\n")


def test_processes_on_gpus_run_on_the_cpu_and_a_later_spawn_may_start_fewer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = run_script("spawns_on_gpus.py", "all", n=4, on_cpu=True)
    said = [f"{rank} of {size}" for size in (4, 2) for rank in range(size)]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"rank {line[0]}: {line}" for line in said)
    sends = [int((rank.recorder.frame()["op"] == "send").sum()) for rank in cluster.ranks]
    assert sends[0] > sends[3] > 0  # the records of both spawns are there
    with pytest.raises(RunFailed, match=r"spawn\(nprocs=2\): this is rank 0 of --n_gpus 4; give 4"):
        run_script("spawns_on_gpus.py", "half", n=4, on_cpu=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.parametrize("line", ["dist.init_process_group('nccl')", "torch.ones(1).cuda()"])
def test_a_script_for_gpus_is_told_how_it_runs_on_the_cpu(line: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"import torch\nimport torch.distributed as dist\n{line}")
    with pytest.raises(RunFailed, match=r"; with --on_cpu, cuda and nccl mean the CPU, at script\.py:3$"):
        run(path=tmp_path / "script.py")
