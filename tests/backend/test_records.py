"""The records of a script on the backend gradwire. Above each test stands what its ranks run."""

import json
import os
import runpy
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.backend.records import HASHES, VARIABLE, begin_records
from gradwire.backend.registration import NAME
from gradwire.diagnosis.divergence import load
from gradwire.diagnosis.why import why
from gradwire.results import load_events, load_table
from gradwire.virtual_time import simulate
from tests.backend.groups import in_group
from tests.pools import Pool
from tests.ranks import LIMIT, outcome
from tests.runs import ROOT, said_by
from tests.torch_scripts import SCRIPTS

_NUMEL = 10_000


def train_a_little() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    pair: Any = dist.new_group([0, 1])
    for _ in range(3):
        work: Any = dist.all_reduce(torch.ones(_NUMEL), async_op=True, group=pair)
        work.wait()
        optimizer.step()
    if dist.get_rank() == 0:
        dist.send(torch.ones(7), 1)
    else:
        dist.recv(torch.ones(7), 0)


def fit_badly() -> None:
    dist.all_reduce(torch.ones(4 + dist.get_rank()))


def record(url: str, directory: str, work: Callable[[], Any], hashes: str) -> str:
    os.environ |= {VARIABLE: directory, HASHES: hashes}
    try:
        return str(outcome(in_group, url, 2, NAME, LIMIT, work, ()))
    finally:
        del os.environ[VARIABLE], os.environ[HASHES]


def recorded(folder: Path, directory: Path, work: Callable[[], Any], hashes: str = "0") -> list[str]:
    """Record a run of two ranks; return how each ends."""
    running = partial(record, f"file://{folder}/store", str(directory), work, hashes)
    said: list[str] = Pool.running("processes").run(2, running)
    return said


def test_a_run_of_two_ranks_has_records_with_the_lines_of_its_script(tmp_path: Path) -> None:
    recorded(tmp_path, tmp_path / "records", train_a_little)
    (path,) = (tmp_path / "records").glob("*.json")
    events, table = load_events(path.with_suffix("")), load_table(path.with_suffix(".csv"))
    assert table["step"].tolist() == [3, 3]
    assert table["bytes_sent"].tolist() == table["bytes_received"].tolist()[::-1]
    sent = events[events["op"] == "send"]
    reduced = sent[sent["tag"].str.startswith("all_reduce")].groupby(["rank", "step"])["bytes"].sum()
    assert reduced.to_dict() == {(rank, step): 4 * _NUMEL for rank in range(2) for step in range(3)}
    assert sent[sent["tag"] == "message 0"][["rank", "peer", "bytes", "step"]].to_numpy().tolist() == [[0, 1, 28, 3]]
    first = train_a_little.__code__.co_firstlineno
    here = Path(__file__).relative_to(ROOT).as_posix()
    lines = {"all_reduce": f"{here}:{first + 4}", "message": f"{here}:{first + 8}"}
    for begins, line in lines.items():
        assert {*sent[sent["tag"].str.startswith(begins)]["line"]} == {line}
    waits = events[events["phase"] == "wait"].groupby("rank")["tag"].agg(set)
    assert "all_reduce" in waits[0]
    assert {"all_reduce", "recv"} <= waits[1]
    assert here in json.loads(path.read_text())["sources"]


def test_a_run_that_fails_has_the_records_until_then(tmp_path: Path) -> None:
    for said in recorded(tmp_path, tmp_path / "records", fit_badly):
        assert "mismatch: " in said
    (path,) = (tmp_path / "records").glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["deaths"] == []
    assert "; mismatch: rank " in kept["remark"]


def run_script(script: str) -> None:
    sys.argv = [script, "ddp"]
    runpy.run_path(script, run_name="__main__")


def test_why_compares_a_run_of_processes_with_one_in_virtual_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = str(SCRIPTS / "hashed.py")
    recorded(tmp_path, tmp_path / "real", partial(run_script, script), hashes="1")
    (path,) = (tmp_path / "real").glob("*.json")
    monkeypatch.setenv("BACKEND", NAME)
    given = ["--script", script, "--compute=1ms", "--hashes", f"--results_dir={tmp_path}"]
    for name, arguments in (("same", ["ddp"]), ("other", ["ddp", "lr", "0.25"])):
        code, text = said_by(partial(simulate.main, [*given, f"--run_name={name}", "--", *arguments]))
        assert code == 0, text
    real, same, other = (load(str(run)) for run in (path, tmp_path / "same", tmp_path / "other"))
    assert why(real, same).startswith("the same bits in all 3 steps")
    text = why(real, other)
    assert "step 2: the parameters x of worker 0" in text
    assert "cause     another update of x: arguments ['ddp'] and ['ddp', 'lr', '0.25']" in text


@pytest.mark.parametrize("value", ["yes", "1"])
def test_hashes_are_asked_for_with_records(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HASHES, value)
    kind, said = outcome(begin_records, dist.HashStore(), 0, 1, timedelta(seconds=LIMIT))
    assert (kind, f"{HASHES}={value}: give 1, and {VARIABLE}=DIR for the records" in said) == ("UsageError", True), said


def test_a_folder_that_cannot_be_written_is_named_on_each_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for said in recorded(tmp_path, tmp_path / "file", train_a_little):
        assert "UsageError" in said
        assert f"{VARIABLE}={tmp_path}/file: cannot write there: " in said


def test_records_need_a_default_group_of_this_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        kind, said = outcome(begin_records, dist.HashStore(), 0, 1, timedelta(seconds=LIMIT))
    finally:
        dist.destroy_process_group()
    assert (kind, "the default group has another backend" in said) == ("UsageError", True), said
