import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from records.compare import HEADER
from records.events import Recorder
from records.files import (
    check_writable,
    git_commit,
    load_events,
    load_metadata,
    load_table,
    machine,
    write_atomically,
    write_run,
)
from records.tables import COLUMNS, epoch_table, ledger, phase_times, summary, totals

PROJECT = Path(__file__).resolve().parents[2]
ROLES = ("server", "worker", "worker")
METADATA = {"strategy": "parameter_server", "n_gpus": 3, "replicas_identical": True, "parameter_hash": {0: "ab"}}


def parameter_server_events(epochs: int = 2) -> pd.DataFrame:
    """Rank 0 serves two workers for `epochs` epochs of 10 steps; the clock starts at 1000 s."""
    server, *workers = (Recorder(rank) for rank in range(3))
    for epoch in range(1, epochs + 1):
        for recorder in (server, *workers):
            recorder.epoch = epoch
        server.add("communicate", 1000.0, 1000.5, "recv", peer=1, tag="gradient", nbytes=100)
        server.add("communicate", 1000.5, 1001.5, "send", peer=1, tag="weights", nbytes=400)
        server.add("communicate", 1001.5, 1001.75, "send", peer=2, tag="NA", nbytes=50)
        server.mark("epoch_s", 4.0)
        for worker in workers:
            worker.step = 10 * epoch - 1
            worker.add("forward", 1000.0, 1000.25)
            worker.add("forward", 1002.0, 1002.5)
            worker.add("wait", 1003.0, 1003.0 + worker.rank)
            worker.step = 10 * epoch
            worker.mark("epoch_s", 3.0 + worker.rank + epoch)  # the slowest takes 6 s, then 7 s
            worker.mark("samples", 70)
            worker.mark("train_loss", 1 / 3 / epoch)
        workers[0].add("communicate", 1003.0, 1003.5, "send", peer=0, tag="gradient", nbytes=100)
    workers[0].mark("test_accuracy", 0.75)
    workers[0].mark("test_loss", 0.5)
    return pd.concat([recorder.frame() for recorder in (server, *workers)], ignore_index=True)


def parameter_server_table(epochs: int = 2) -> pd.DataFrame:
    return epoch_table(parameter_server_events(epochs), "parameter_server", 3, ROLES)


def unrecorded_table() -> pd.DataFrame:
    recorder = Recorder(0, enabled=False)
    recorder.epoch = 1
    recorder.add("forward", 0.0, 1.0)
    recorder.mark("epoch_s", 2.0)
    recorder.mark("samples", 10)
    return epoch_table(recorder.frame(), "single", 1, ["worker"])


def test_epoch_table_has_the_promised_rows_and_columns() -> None:
    table = parameter_server_table()
    expected = (
        "strategy,n_gpus,rank,role,epoch,step,samples,train_loss,test_loss,test_accuracy,epoch_s,data_s,forward_s,"
        "backward_s,compress_s,communicate_s,wait_s,update_s,bytes_sent,bytes_received,messages_sent,"
        "dropped,staleness_mean,staleness_max"
    )
    assert ",".join(table.columns) == expected
    assert list(zip(table["epoch"], table["rank"], table["role"], strict=True)) == [
        (epoch, rank, ROLES[rank]) for epoch in (1, 2) for rank in range(3)
    ]
    assert set(table["strategy"]) == {"parameter_server"}
    assert set(table["n_gpus"]) == {3}


def test_epoch_table_numbers() -> None:
    server, worker = parameter_server_table().iloc[[3, 4]].to_dict("records")
    assert (server["communicate_s"], server["bytes_sent"], server["bytes_received"]) == (1.75, 450, 100)
    assert (server["messages_sent"], server["epoch_s"], server["step"]) == (2, 4.0, 0)
    assert (worker["forward_s"], worker["wait_s"], worker["communicate_s"]) == (0.75, 1.0, 0.5)
    assert (worker["step"], worker["samples"], worker["epoch_s"]) == (20, 70, 6.0)
    assert (worker["train_loss"], worker["test_loss"], worker["test_accuracy"]) == (1 / 6, 0.5, 0.75)


def test_what_does_not_apply_is_empty_and_what_did_not_happen_is_zero() -> None:
    table = parameter_server_table()
    server, silent = table.iloc[0], table.iloc[2]
    assert server[["samples", "forward_s", "data_s", "test_accuracy"]].isna().all()
    assert silent[["bytes_sent", "bytes_received", "messages_sent"]].tolist() == [0, 0, 0]
    assert pd.isna(silent["communicate_s"])
    unrecorded = unrecorded_table()
    assert unrecorded["epoch_s"].tolist() == [2.0]
    assert unrecorded[["bytes_sent", "bytes_received", "messages_sent", "forward_s"]].isna().all(axis=None)


def test_a_rank_without_a_role_is_an_error() -> None:
    with pytest.raises(IndexError):
        epoch_table(parameter_server_events(), "parameter_server", 3, ROLES[:2])


def test_a_run_that_finished_no_epoch_has_an_empty_table() -> None:
    table = epoch_table(Recorder().frame(), "ring", 1, ["worker"])
    assert table.empty
    assert list(table.columns) == list(COLUMNS)
    assert totals(table) == {"test_accuracy": None, "seconds": 0.0, "samples_per_s": None, "bytes_sent": None}


def test_ledger_counts_what_was_sent() -> None:
    expected = [(0, 1, 2, 800), (0, 2, 2, 100), (1, 0, 2, 200)]
    pairs = ledger(parameter_server_events())
    assert list(pairs.columns) == ["src", "dst", "messages", "bytes"]
    assert list(pairs.itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize(("epochs", "seconds", "rate"), [(1, 6.0, 140 / 6), (2, 13.0, 140 / 7)])
def test_totals_leave_the_first_of_several_epochs_out_of_the_rate(epochs: int, seconds: float, rate: float) -> None:
    numbers = totals(parameter_server_table(epochs))
    assert numbers == {
        "test_accuracy": 0.75,
        "seconds": seconds,
        "samples_per_s": pytest.approx(rate),
        "bytes_sent": 550 * epochs,
    }


def test_phase_times_are_means_over_the_ranks_of_a_role() -> None:
    times = phase_times(parameter_server_table())
    assert times.loc["worker", "wait_s"] == 3.0  # 2 s on rank 1, 4 s on rank 2
    assert times.loc["worker", "communicate_s"] == 0.5  # 1 s on rank 1, none on rank 2
    assert times.loc["server", "epoch_s"] == 8.0
    assert pd.isna(times.loc["server", "wait_s"])


def test_summary_is_short_and_shows_the_numbers() -> None:
    text = summary(parameter_server_table(), {"strategy": "parameter_server", "note": "long " * 50})
    lines = text.splitlines()
    assert len(lines) <= 14
    assert max(map(len, lines)) <= 100
    rows = {line[:15].strip(): line[15:].split() for line in lines}
    assert rows["test accuracy"] == ["0.7500"]
    assert rows["seconds"] == ["13.00"]
    assert rows["samples/s"][0] == "20.0"
    assert rows["wait"] == ["-", "-", "3.00", "25.0"]  # server, then worker: 3 of 12 s
    assert "time per rank  not recorded" in summary(unrecorded_table(), {})


def test_summary_of_many_ranks_stays_within_the_width() -> None:
    table = parameter_server_table()
    ranks = pd.concat([table.assign(rank=rank, bytes_sent=10**9) for rank in range(16)])
    text = summary(ranks, {})
    assert "15: 6000.0" in text
    assert max(map(len, text.splitlines())) <= 100


def test_run_round_trip(tmp_path: Path) -> None:
    events, table = parameter_server_events(), parameter_server_table()
    paths = write_run(tmp_path, "run.1", events, table, METADATA | {"loss": float("nan"), "where": tmp_path})
    assert sorted(os.listdir(tmp_path)) == ["run.1.csv", "run.1.events.csv.gz", "run.1.json"]
    assert {key: path.name for key, path in paths.items()} == {
        "events": "run.1.events.csv.gz",
        "table": "run.1.csv",
        "metadata": "run.1.json",
    }
    start = events["t0"].min()
    expected = events.assign(t0=events["t0"] - start, t1=events["t1"] - start)
    for path in (paths["events"], tmp_path / "run.1"):
        loaded = load_events(path)
        pd.testing.assert_frame_equal(loaded, expected, rtol=0, atol=1e-8)
        assert (loaded["tag"] == events["tag"]).all()
        assert loaded["t0"].min() == 0.0
    pd.testing.assert_frame_equal(load_table(paths["table"]), table, check_exact=True)
    assert load_metadata(paths["metadata"]) == {
        **METADATA,
        "parameter_hash": {"0": "ab"},
        "loss": None,
        "where": str(tmp_path),
    }


def test_an_unrecorded_table_round_trips(tmp_path: Path) -> None:
    table = unrecorded_table().assign(strategy="none")
    paths = write_run(tmp_path, "run", parameter_server_events(), table, METADATA)
    pd.testing.assert_frame_equal(load_table(paths["table"]), table)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", [(Path, "write_bytes"), (os, "replace")])
def test_a_failed_write_leaves_the_older_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, where: tuple[Any, str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for name in ("run.csv", "run.json", "run.events.csv.gz"):
        (tmp_path / name).write_text("older")
    monkeypatch.setattr(*where, fail)
    with pytest.raises(type(error)):
        write_run(tmp_path, "run", parameter_server_events(), parameter_server_table(), METADATA)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("run.csv", "run.json", "run.events.csv.gz"), b"older"
    )


def test_write_atomically_keeps_the_suffix_and_replaces_only_on_success(tmp_path: Path) -> None:
    target = tmp_path / "model.pt"
    with write_atomically(target) as temporary:
        temporary.write_text("first")
        assert temporary.suffix == ".pt"
        assert not target.exists()

    def half_written() -> None:
        with write_atomically(target) as temporary:
            temporary.write_text("sec")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_written()
    assert os.listdir(tmp_path) == ["model.pt"]
    assert target.read_text() == "first"


def test_check_writable(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "results")
    assert os.listdir(tmp_path / "new" / "results") == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        check_writable(tmp_path / "file" / "results")
    with pytest.raises(FileExistsError):
        check_writable(tmp_path / "file")


def test_foreign_files_are_not_loaded(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="columns"):
        load_table(foreign)
    path = write_run(tmp_path, "run", parameter_server_events(), parameter_server_table(), METADATA)["events"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="damaged"):
        load_events(path)


def test_machine_is_plain_data() -> None:
    description = machine()
    assert json.loads(json.dumps(description)) == description
    assert description["python"] == sys.version.split()[0]
    assert 1 <= description["cores"] <= (os.cpu_count() or 1)
    assert description["memory_gib"] > 0
    assert description["cpu"]


def test_git_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", "-C", str(tmp_path), *identity, *arguments], text=True).strip()

    assert git_commit(tmp_path) is None
    git("init", "-q")
    assert git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    git("tag", "-am", "v1", "v1")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def compare(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "records.compare", *arguments]
    environment = os.environ | {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def cells(line: str) -> list[str]:
    return re.split(r" {2,}", line)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    events = parameter_server_events()
    write_run(tmp_path, "ps.1", events, parameter_server_table(), METADATA)
    write_run(tmp_path, "off", events, unrecorded_table(), METADATA | {"replicas_identical": False})
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "foreign.csv").write_text("a,b\n1,2\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.csv").write_bytes((tmp_path / "off.csv").read_bytes())
    (tmp_path / "list.json").write_text(json.dumps(list(METADATA)))
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (tmp_path / "unfinished.csv").write_text(",".join(COLUMNS) + "\n")
    (tmp_path / "alone.json").write_text(json.dumps(METADATA))
    return tmp_path


PS = ["ps.1", "parameter_server", "3", "2", "0.7500", "13.00", "20.0", "0.0", "25.0", "-"]
OFF = ["off", "single", "1", "1", "-", "2.00", "5.0", "-", "-", "-"]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (["ps.1.json", "off.csv"], [[*PS, "yes"], [*OFF, "no"]]),
        (["off.json", "ps.1.csv", "off.csv"], [[*OFF, "no"], [*PS, "yes"]]),
        (["ps*.json"], [[*PS, "yes"]]),
    ],
)
def test_compare_prints_runs_in_the_order_given(
    results: Path, arguments: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    done = compare(results, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert cells(header) == list(HEADER)
    assert [cells(line) for line in lines] == rows
    assert len({len(line) for line in (header, *lines)}) == 1


def test_compare_needs_no_json(results: Path) -> None:
    (results / "ps.1.json").unlink()
    done = compare(results, "ps.1.csv")
    assert cells(done.stdout.splitlines()[1]) == [*PS, "-"]


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("missing.csv", "missing.csv"),
        ("nothing*.json", "nothing*.json"),
        ("broken.json", "broken."),
        ("alone.json", "alone.csv"),
        ("foreign.csv", "foreign.csv"),
        ("binary.csv", "binary.csv"),
        ("ragged.csv", "ragged.csv"),
        ("unfinished.csv", "unfinished.csv"),
        ("list.csv", "list.json"),
        ("off.events.csv.gz", "off.events.csv.gz"),
        (".", "."),
    ],
)
def test_compare_names_the_bad_file_in_one_line(results: Path, argument: str, named: str) -> None:
    done = compare(results, "ps.1.csv", argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"compare: {named}")


def test_compare_passes_over_the_traces_beside_the_runs(results: Path) -> None:
    (results / "ps.1.trace.json").write_text('{"traceEvents": []}')
    assert compare(results, "ps*.json").stdout == compare(results, "ps.1.json").stdout
    done = compare(results, "ps.1.trace.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "compare: ps.1.trace.json: the trace of a run; give its .json\n"


def test_compare_explains_itself(tmp_path: Path) -> None:
    nothing, wanted = compare(tmp_path), compare(tmp_path, "--help")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert nothing.stderr.startswith("usage:")
    assert (wanted.returncode, wanted.stderr) == (0, "")
    assert "pattern" in wanted.stdout
