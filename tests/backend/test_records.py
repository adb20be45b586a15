"""The records of a script on the backend gradwire. Above each test stands what its ranks run."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.backend.records import VARIABLE, begin_records
from gradwire.backend.registration import NAME
from gradwire.results import load_events, load_table
from tests.backend.groups import in_group
from tests.pools import Pool
from tests.ranks import LIMIT, outcome
from tests.runs import ROOT

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


def record(url: str, directory: str, work: Callable[[], Any]) -> str:
    os.environ[VARIABLE] = directory
    try:
        return str(outcome(in_group, url, 2, NAME, LIMIT, work, ()))
    finally:
        del os.environ[VARIABLE]


def recorded(folder: Path, directory: Path, work: Callable[[], Any]) -> list[str]:
    """Record a run of two ranks; return how each ends."""
    running = partial(record, f"file://{folder}/store", str(directory), work)
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


def test_a_run_that_fails_has_no_records(tmp_path: Path) -> None:
    for said in recorded(tmp_path, tmp_path / "records", fit_badly):
        assert "mismatch: " in said
    assert list((tmp_path / "records").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named_on_each_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for said in recorded(tmp_path, tmp_path / "file", train_a_little):
        assert "UsageError" in said
        assert f"{VARIABLE}={tmp_path}/file: cannot write there: " in said


def test_records_need_a_default_group_of_this_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        kind, said = outcome(begin_records, dist.HashStore(), 0, 1)
    finally:
        dist.destroy_process_group()
    assert (kind, "the default group has another backend" in said) == ("UsageError", True), said
