"""The record that a replay repeats: whole, or refused in one line; and what is said of the result."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradwire import run
from gradwire.checkpoints import replay
from gradwire.core.records.errors import RunFailed, UsageError
from strategies.asynchronous_server.downpour import Downpour
from tests.runs import made, small

pytestmark = pytest.mark.xdist_group("replay")  # a run of the module is made once


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    made(folder, Downpour(n_push=2, n_fetch=3), "downpour", n_gpus=4, slow=("2:3",), jitter=0.5)
    made(folder, "param_server", "synchronous", n_gpus=3)
    return folder


def test_a_synchronous_run_has_nothing_to_be_repeated(results: Path) -> None:
    assert replay.load(str(results / "synchronous")).arrivals == []
    with pytest.raises(UsageError, match=r"^--replay .*: that run was synchronous"):
        run(small(results, "param_server", n_gpus=3, replay=str(results / "synchronous"), run_name="again"))
    assert not (results / "again.json").exists()


def test_a_record_that_was_changed_is_refused_in_one_line(results: Path, tmp_path: Path) -> None:
    record = json.loads((results / "downpour.json").read_text())
    changes: list[dict[str, Any]] = [
        {"arrivals": "one"}, {"arrivals": None}, {"parameter_hash": {}}, {"options": None},
    ]  # fmt: skip
    for text in (*(json.dumps(record | change) for change in changes), "", "[]", "{}", "{"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(UsageError, match=r"^--replay .* is not the record of a run.*\Z"):
            replay.load(str(tmp_path / "run"))


def test_other_parameters_are_told_with_what_differs(results: Path, tmp_path: Path) -> None:
    record = json.loads((results / "downpour.json").read_text())
    name = str(results / "downpour")
    with pytest.raises(RunFailed, match=r"other parameters .*the code or the data are not the same"):
        replay.compare(name, "another", quiet=True)
    record["machine"]["torch"] = "0.1"
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunFailed, match=r"torch 0\.1 then"):
        replay.compare(str(tmp_path / "run"), "another", quiet=True)
