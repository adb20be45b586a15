"""The backend gradwire in scripts of their own: what a killed rank leaves, an end without `destroy_process_group`."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest

from gradwire.backend.records import VARIABLE
from gradwire.results import load_table
from tests.ranks import LIMIT
from tests.runs import ROOT

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
import gradwire
from datetime import timedelta
how, rank = sys.argv[2], int(sys.argv[3])
dist.init_process_group("gradwire", f"file://{sys.argv[1]}/store", timedelta(seconds=120), 2, rank)
bucket = torch.ones(100_000)
for _ in range(5):
    dist.all_reduce(bucket)
if how == f"kills {rank}":
    if not os.fork():
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
elif how == "kills 1":
    dist.all_reduce(torch.ones(3))
elif how == "kills 0":
    while True:
        time.sleep(0.01)
elif rank:
    while not os.path.exists(f"{sys.argv[1]}/sent"):
        time.sleep(0.01)
    got = torch.empty(100_000)
    dist.recv(got, 0)
    assert got.sum() == 200_000
else:
    dist.send(torch.full((100_000,), 2.0), 1)
    open(f"{sys.argv[1]}/sent", "w").close()
"""


def run_script(folder: Path, how: str, killed: int = 1) -> list[tuple[int, str]]:
    """Run the script on two ranks, and stop the other when one was killed; return how each ends, and what it says."""
    (folder / "mine.py").write_text(SCRIPT)
    (folder / "temporary").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "temporary")}
    outputs = [(folder / f"{rank}.txt").open("w") for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "mine.py", str(folder), how, str(rank)], stdout=subprocess.DEVNULL,
            stderr=output, cwd=folder, start_new_session=True,
            env={**environment, VARIABLE: str(folder / "records")},
        )
        for rank, output in enumerate(outputs)
    ]  # fmt: skip
    try:
        ranks[killed].wait(LIMIT)
        if how == "kills 0":
            ranks[1].terminate()  # as torchrun does
        return [(process.wait(LIMIT), (folder / f"{rank}.txt").read_text()) for rank, process in enumerate(ranks)]
    finally:
        for rank, output in zip(ranks, outputs, strict=True):
            output.close()
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # its session, in which a child may be left


@pytest.mark.end_to_end
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_named_though_a_child_of_it_lives_and_others_have_records(killed: int, tmp_path: Path) -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    ends = run_script(tmp_path, f"kills {killed}", killed)
    code, said = ends[1 - killed]
    assert (code, ends[killed][0]) == (143 if killed == 0 else 1, -9), said
    if killed == 1:
        assert "rank 0 is in all_reduce of (3,) float32, SUM at mine.py:16: lost rank 1: it died" in said
    (path,) = (tmp_path / "records").glob("*.json")
    assert f"{VARIABLE}: {path.with_suffix('')}: of rank {killed}, which died, there are no records" in said
    assert {death["rank"] for death in json.loads(path.read_text())["deaths"]} == {killed}
    table = load_table(path.with_suffix(".csv"))
    assert table["rank"].tolist() == [1 - killed]
    assert table["messages_sent"].min() >= 10  # those of the bucket
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert {path.name for path in Path("/dev/shm").glob("torch_*")} <= before


@pytest.mark.end_to_end
def test_a_rank_may_end_without_an_end_of_its_group(tmp_path: Path) -> None:
    assert [code for code, _ in run_script(tmp_path, "ends")] == [0, 0]


@pytest.mark.end_to_end
def test_torch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    (tmp_path / "some-1.dist-info").mkdir()
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (tmp_path / "some-1.dist-info" / "entry_points.txt").write_text(f"[torch.backends]\n{lines}")
    code = "import torch.distributed as dist; assert 'gradwire' in dist.Backend.backend_list"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
