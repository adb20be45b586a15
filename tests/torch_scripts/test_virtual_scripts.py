"""A torch.distributed script on the virtual cluster: the results of gloo, exact bytes and seconds, mistakes named."""

import io
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import pytest
import torch

from benchmarks import ddp_steps
from gradwire.core.records.errors import RunFailed
from gradwire.core.transports.base import Transport
from gradwire.every_order import explore
from gradwire.networks.units import PAYLOAD
from gradwire.pictures import page, timeline
from gradwire.torch_scripts import threads
from gradwire.torch_scripts.output import Lines
from gradwire.torch_scripts.virtual import Cluster
from gradwire.torch_scripts.virtual_rank import Speed
from gradwire.virtual_time import simulate
from gradwire.virtual_time.ranks import Deadlock
from tests.graphs import FOLDER
from tests.ranks import LIMIT, launch
from tests.runs import said_by
from tests.torch_scripts import BANDWIDTH, LATENCY, SCRIPTS, run_script

STEPS = ddp_steps.__file__
RING = str(FOLDER / "ring-8.json")
PARAMETERS = (64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10) * 4  # bytes of steps.py's model


def run(name: str, n: int, *arguments: Any, compute: float | None = 0.02, all_reduce: str = "ring") -> Cluster:
    path = STEPS if name == "steps.py" else name
    return run_script(path, *arguments, n=n, speed=Speed(compute), all_reduce=all_reduce)


def bytes_sent(cluster: Cluster) -> int:
    rows = pd.concat([rank.recorder.frame() for rank in cluster.ranks])
    return int(rows[rows["op"] == "send"]["bytes"].sum())


def difference(one: Any, other: Any) -> float:
    if isinstance(one, torch.Tensor):
        return float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list | tuple):
        return max((difference(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    return 0.0 if one == other else float("inf")


def run_on_gloo(transport: Transport, port: int, folder: str) -> None:
    """Run features.py on this rank, in a process of its own."""
    own = {"RANK": str(transport.rank), "WORLD_SIZE": str(transport.world_size), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(port)}  # fmt: skip
    with patch.dict(os.environ, own), patch.object(sys, "argv", ["features.py", folder]):
        runpy.run_path(str(SCRIPTS / "features.py"), run_name="__main__")


@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_script_ends_as_on_gloo(n: int, tmp_path: Path) -> None:
    ours, gloos = tmp_path / "ours", tmp_path / "gloos"
    ours.mkdir()
    gloos.mkdir()
    run("features.py", n, ours)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch(run_on_gloo, n, port, str(gloos), timeout=LIMIT)
    for rank in range(n):
        one, other = (torch.load(folder / f"{rank}.pt", weights_only=False) for folder in (ours, gloos))
        for name in one.keys() | other.keys():
            bound = 0.0 if n == 2 else 1e-2 if name == "fp16" else 1e-6  # with 2 ranks there is one order of adding
            assert difference(one[name], other[name]) <= bound, name


@pytest.mark.parametrize("n", [1, 3])
def test_ddp_sends_what_its_formula_says(n: int) -> None:
    begun, one, two, three = (bytes_sent(run("steps.py", n, n, steps)) for steps in range(4))
    of_shapes = 8 * n * (n - 1) + 6 * 3 * 8 * (n - 1)  # all_gather of the count, broadcast of the shapes
    assert begun == (n - 1) * PARAMETERS + of_shapes, "its constructor makes all models the first one"
    assert three - two == one - begun == 2 * (n - 1) * PARAMETERS
    assert two - one == (2 * PARAMETERS + 8 * 4) * (n - 1), "once it tells all in which order gradients were complete"


def test_ddp_sends_its_buffers_before_each_forward_pass() -> None:
    two, three = (bytes_sent(run("orders.py", 3, "norm", steps)) for steps in (2, 3))
    parameters, buffers = (3 * 5 + 5 + 2 * 5) * 4, 2 * 5 * 4 + 8
    assert three - two == 2 * (2 * parameters + buffers)


def test_a_step_takes_the_passes_and_a_ring() -> None:
    n = 4
    ends = run("steps.py", n, n, 3).ranks[0].passes
    ring = 2 * (n - 1) * (PARAMETERS / n / BANDWIDTH + LATENCY)
    assert ends[2] - ends[1] == pytest.approx(0.02 + ring, abs=2 * LATENCY), (
        "one bucket, complete at the end of the pass"
    )
    first = 0.02 * 2 / 3 * (64 * 512 + 512) * 4 / PARAMETERS
    ends = run("steps.py", n, n, 3, 0.5).ranks[0].passes
    assert ends[2] - ends[1] < 0.02 + ring - first / 2, "the first bucket is on its way while the first layer computes"


def test_a_rank_alone_takes_what_compute_says() -> None:
    assert run("steps.py", 1, 1, 5).ranks[0].clock == pytest.approx(5 * 0.02)
    assert run("steps.py", 1, 1, 5, compute=None).ranks[0].clock > 0, "else what its thread takes"


def test_another_all_reduce_takes_its_own_time() -> None:
    forms = {"naive": 2 * 3, "all_gather": 3, "recursive_doubling": 2, "halving_doubling": 1.5, "swing": 1.5}
    for name, vectors in (forms | {"double_tree": 2, "hierarchical_ring": 1.5}).items():
        ends = run("steps.py", 4, 4, 3, all_reduce=name).ranks[0].passes
        assert ends[2] - ends[1] == pytest.approx(0.02 + vectors * PARAMETERS / BANDWIDTH, abs=12 * LATENCY), name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("other collective", "rank 1 is in broadcast of (4,) float32, root 0 at mistakes.py:20, rank 0 is in all_reduce"
                             " of (4,) float32, SUM at mistakes.py:22"),
        ("other shape", "rank 1 is in all_reduce of (5,) float32, SUM at mistakes.py:24, rank 0 is in all_reduce of"),
        ("other message", "rank 1 is in recv of (3,) float32 from rank 0 at mistakes.py:29, rank 0 is in send of (4,)"),
        ("small outputs", "is in all_gather of (3,) float32 at mistakes.py:58, with outputs of (5,) float32 and (5,)"),
        ("raises", "rank 1 raised ValueError: no, at mistakes.py:40"),
        ("exits", "rank 1 exited with 3, at mistakes.py:44"),
        ("world", "init_process_group(world_size=7): this is rank 0 of --n_gpus 2; give 2"),
        ("circle", "rank 0 waits in recv of (4,) float32 from rank 1 at mistakes.py:14; rank 1 waits in recv of"),
        ("sends first", "rank 0 waits in send of (4,) float32 to rank 1 at mistakes.py:16"),
        ("left", "rank 0 waits in barrier at mistakes.py:32 for rank 1; ended: rank 1"),
        ("catches all", "rank 0 waits in recv of (4,) float32 from rank 1 at mistakes.py:62; rank 1 waits in recv of"),
        ("has no text", "rank 0 raised Mute, at mistakes.py:71"),
        ("no backward", "rank 0 waits in all_reduce of (12,) float32, SUM at mistakes.py:37 for rank 1"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_a_deadlock_says_who_waits_for_whom(name: str, says: str) -> None:
    with pytest.raises(RunFailed) as failed:
        run("mistakes.py", 2, name)
    assert says in str(failed.value)
    assert isinstance(failed.value, Deadlock) == says.startswith("rank 0 waits")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_rank_that_blocks_what_all_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_LOOK_S", 0.5)
    monkeypatch.setattr(threads, "_COMPUTES_S", 0.1)
    with pytest.raises(RunFailed, match=r"rank 1 neither computes nor asks for anything, at mistakes\.py:50"):
        run("mistakes.py", 2, "blocks")


@pytest.mark.parametrize("command", [simulate.main, explore.main])
def test_an_interrupt_ends_a_rank_that_computes(command: Callable[[list[str]], int]) -> None:
    given = ["--script", str(SCRIPTS / "mistakes.py"), "--", "is interrupted"]
    before = set(threading.enumerate())
    assert said_by(lambda: command(given)) == (128 + signal.SIGTERM, "\nerror: ended by SIGTERM; nothing was written\n")
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("rank ")]


def test_the_process_is_as_before() -> None:
    before = {**os.environ}, sys.argv, sys.stdout, sys.modules["__main__"], torch.get_rng_state().tolist()
    run("steps.py", 2, 2, 1)
    assert before == ({**os.environ}, sys.argv, sys.stdout, sys.modules["__main__"], torch.get_rng_state().tolist())
    assert not torch.distributed.is_initialized()


def test_groups_without_a_common_rank_do_not_wait_for_each_other() -> None:
    one, both = (max(rank.clock for rank in run("groups.py", 4, *pairs).ranks) for pairs in ("0", "01"))
    assert one == both == pytest.approx(2 * (LATENCY + 2000 / BANDWIDTH))


def test_a_group_has_the_links_between_its_ranks(tmp_path: Path) -> None:
    """Ranks 4 and 5 of a ring of eight: from 4 to 5 is one link, and back seven."""
    given = ["--script", str(SCRIPTS / "groups.py"), "--n_gpus=8", f"--network={RING}", "--compute=0s"]
    code, text = said_by(lambda: simulate.main([*given, f"--results_dir={tmp_path}", "--run_name=run", "--", "2"]))
    assert code == 0, text
    assert "network ring-8.json" in text
    seconds = pd.read_csv(tmp_path / "run.csv")["epoch_s"].max()
    assert seconds == pytest.approx(8 * 2e-6 + 2 * 2000 / (1.25e9 * PAYLOAD)), "a half there and a sum back"


def test_the_command_writes_records_with_the_lines_of_the_script(tmp_path: Path) -> None:
    given = ["--script", str(STEPS), "--n_gpus=4", "--bandwidth=1gbit", "--compute=20ms",
             f"--results_dir={tmp_path}", "--run_name=run", "--", "4", "3"]  # fmt: skip
    code, text = said_by(lambda: simulate.main(given))
    assert code == 0, text
    assert "a step takes" in text
    assert "busiest cards" in text
    table = pd.read_csv(tmp_path / "run.csv")
    assert table["bytes_sent"].sum() == 3 * PARAMETERS + 4 * 3 * 8 + (6 * 3 * 8 + 8 * 4) * 3 + 3 * 2 * 3 * PARAMETERS
    lines = set(pd.read_csv(tmp_path / "run.events.csv.gz")["line"].dropna())
    assert any(line.endswith("benchmarks/ddp_steps.py:31") for line in lines), "loss.backward()"
    for command in (page.main, timeline.main):
        assert command([str(tmp_path / "run")]) == 0
    assert "cross_entropy" in (tmp_path / "run.page.html").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--script", "nowhere.py"], "--script nowhere.py: cannot be run"),
        (["--script", "/dev/full"], "--script /dev/full: is no file"),
        (["--script", __file__, "--strategy", "gossip"], "--strategy"),
        (["--script", __file__, "--n_gpus", "0"], "--n_gpus 0: must be from 1 to 1024"),
        (["--script", __file__, "--bandwidth", "fast"], "--bandwidth fast: write a bandwidth"),
        (["--script", __file__, "--compute", "long"], "--compute long: write a time"),
        (["--script", __file__, "--racks", "9"], "--racks 9: must be from 1"),
        (["--script", __file__, "--sweep", "script=1,2"], "--sweep script=1,2: script cannot be varied"),
        (["--script", __file__, "--sweep", "n_gpus=2,0"], "--sweep, at n_gpus=0: --n_gpus 0: must be from 1"),
        (["--script", __file__, "--sweep", "racks=2,9"], "--sweep, at racks=9: --racks 9: must be from 1"),
        (["--script", __file__, "--sweep", "lr=1,2"], "--sweep, at lr=1: "),
        (["--script", __file__, "--sweep", "n_gpus=2", "--run_name=a"], "--run_name: a sweep writes one table"),
        (["--script", __file__, f"--network={RING}"], f"--n_gpus 2: --network {RING} has 8 ranks; give as many"),
        (["--script", __file__, f"--network={RING}", "--latency", "1us"], "--network says them, link by link"),
    ],
)
def test_bad_input_is_one_line(given: list[str], says: str, tmp_path: Path) -> None:
    code, text = said_by(lambda: simulate.main([*given, f"--results_dir={tmp_path / 'new'}"]))
    assert code == 2
    assert says in text
    assert not (tmp_path / "new").exists()


def test_the_output_of_a_rank_asks_nothing_of_a_stream_that_is_closed_after_it() -> None:
    stream = io.StringIO()
    lines = Lines(1, stream)
    lines.write("one\ntw")
    lines.write("o")
    lines.end()
    assert stream.getvalue() == "rank 1: one\nrank 1: two\n"
    stream.close()
    lines.close()  # as Python does with all that nobody refers to


def test_a_sweep_is_a_table_of_runs(tmp_path: Path) -> None:
    given = ["--script", str(STEPS), "--bandwidth=1gbit", "--compute=20ms", f"--results_dir={tmp_path}"]
    varied = ["--sweep", "bandwidth=100mbit,1gbit", "--sweep", "compute=20ms,40ms"]
    code, text = said_by(lambda: simulate.main([*given, *varied, "--", "2", "3"]))
    assert code == 0, text
    (path,) = tmp_path.glob("sweep-*.csv")
    table = pd.read_csv(path)
    assert table["bandwidth"].tolist() == ["100mbit", "100mbit", "1gbit", "1gbit"]
    assert table["mb_sent"].nunique() == 1
    a, b, c, d = table["seconds_a_step"]
    assert b - a == pytest.approx(d - c) == pytest.approx(0.02, rel=0.01), "the bucket is complete at the end"
    assert (a - 0.02) / (c - 0.02) == pytest.approx(10, rel=0.05)
    assert len(list(tmp_path.iterdir())) == 1, "runs of a sweep write no records"
