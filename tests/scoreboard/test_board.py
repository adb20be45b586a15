"""The scoreboard as a user sees it: entries, records, what is kept, and whether it comes out again."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.scoreboard import ADAM, OTHERS, VALUES
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.scoreboard import board, game
from gradwire.scoreboard import command as scoreboard
from gradwire.scoreboard import table as records
from gradwire.scoreboard.board import Scale
from gradwire.scoreboard.clusters import CLUSTERS, RANKS
from gradwire.scoreboard.entry import ENTRIES, find
from gradwire.scoreboard.game import Played
from tests.ranks import LIMIT, wait_until
from tests.runs import ROOT, said_by

_FOUND = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8"), re.DOTALL)
EXAMPLE = _FOUND[1] if _FOUND else ""
KEPT = ROOT / "results" / "scoreboard"
BUDGETS = {"slow": 2.36, "fast": 0.42, "racks": 0.42}  # by which few numbers of steps are tried


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the command arguments, in a folder of its own; return its exit code and what it prints.

    The runs are short and made in this process, and scored on the first lines of the held-out text.
    """

    @contextmanager
    def workers() -> Iterator[Executor]:
        with ThreadPoolExecutor(1) as pool:
            yield pool

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(board, "workers", workers)
    monkeypatch.setattr(board, "TRIAL", Scale(2))
    monkeypatch.setattr(board, "RECORD", Scale(2))
    whole = game.batches_of_test
    monkeypatch.setattr(game, "batches_of_test", lambda *of: islice(whole(*of), 1))
    for place, budget in BUDGETS.items():
        monkeypatch.setitem(CLUSTERS, place, replace(CLUSTERS[place], budget=budget))
    return lambda *given: said_by(lambda: scoreboard.main(["--results_dir=kept", *given]))


@pytest.mark.slow
def test_the_example_of_the_page_is_entered_kept_and_comes_out_again(said: Any, tmp_path: Path) -> None:
    (tmp_path / "growing.py").write_text(EXAMPLE)
    code, text = said("growing:Growing")
    assert code == 0, text
    assert text.count("none before: a new record") == 3
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"growing.Growing.json", "growing.Growing.html"}
    facts = records.load(tmp_path / "kept")["growing:Growing"]
    assert facts["lines"] == EXAMPLE.count("\n")
    for place, of in facts["clusters"].items():
        assert all(0.8 * BUDGETS[place] < seconds <= BUDGETS[place] for seconds in of["seconds"])
        assert all(2 < score < 8 for score in of["scores"])
        assert len(set(of["hashes"])) == 2
    facts["clusters"]["slow"]["hashes"][1] = "another"
    of["scores"] = [score - 1 for score in of["scores"]]
    (tmp_path / "kept" / "growing.Growing.json").write_text(json.dumps(facts))
    code, text = said("--verify")
    assert code == 1, text
    assert "Growing, fast: 2 of 2 runs have the same bits\n" in text
    assert re.search(r"slow: 1 of 2 runs have the same bits, not those of seeds 1; mean .*, kept .*: within\n", text)
    assert re.search(r"racks: 2 of 2 runs have the same bits; mean .*, kept .*: outside\n", text)
    assert "error: growing:Growing: did not come out as it is kept" in text


class Runs:
    """The game without a computation: what each run leaves is what is set here."""

    x, seconds = 1.0, {0: 1.0, 1: 1.2}  # the parameter, and virtual seconds of ten steps, by seed

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(game, "play", self.play)
        monkeypatch.setattr(game, "score", lambda parameters: 4.0 + float(parameters["x"]))

    def play(self, entry: object, place: str, seed: int, steps: int, limit: float, show: bool = False) -> Played:
        return Played({"x": torch.full((1,), self.x)}, steps * self.seconds[seed] / 10, 8, "page" * show)


def test_who_ends_after_the_budget_with_one_seed_takes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, entry = Runs(monkeypatch), find("ring_all_reduce")
    with ThreadPoolExecutor(1) as pool:
        facts, _ = board.make(entry, pool, Scale(2))
        assert {place: of["steps"] for place, of in facts["clusters"].items()} == {"slow": 83, "fast": 41, "racks": 41}
        facts["clusters"]["fast"]["steps"] = 42
        with pytest.raises(RunFailed, match="ring_all_reduce, fast: takes more virtual seconds than the budget"):
            board.verify(entry, facts, pool)
        runs.seconds = {0: 1.0, 1: 200.0}
        with pytest.raises(RunFailed, match="one step does not end within the budget with every seed"):
            board.make(entry, pool, Scale(2))


def test_bits_are_compared_on_a_processor_of_the_same_kind_only(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, entry = Runs(monkeypatch), find("ring_all_reduce")
    monkeypatch.setattr(game, "fit", lambda *_: 9)
    runs.seconds = {0: 1.0, 1: 1.0}
    with ThreadPoolExecutor(1) as pool:
        facts, _ = board.make(entry, pool, Scale(2))
        for of in facts["clusters"].values():
            of["scores"] = [5.0, 5.1]
            assert of["hashes"][0] == of["hashes"][1]
        runs.x = 1.05
        assert "fast: 0 of 2 runs have the same bits, not those of seeds 0, 1" in board.verify(entry, facts, pool)
        facts["machine"]["cpu"] = "an abacus"
        assert re.search(
            r"fast: 2 of 2 runs have the same virtual seconds and bytes \(bits not compared: .+, kept an abacus\); "
            r"mean 5.0500, kept 5.0500 ± 0.0707: within", board.verify(entry, facts, pool),
        )  # fmt: skip
        runs.seconds = {0: 1.5, 1: 1.5}
        assert "fast: 0 of 2 runs have the same virtual seconds and bytes" in board.verify(entry, facts, pool)
        runs.x = 2.0
        with pytest.raises(RunFailed, match=r"racks: .*: outside"):
            board.verify(entry, facts, pool)


WITHOUT: Any = object()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("", []), ("entry", WITHOUT), ("clusters", {}), ("clusters slow", []), ("clusters slow scores", [4.0, "x"]),
        ("clusters slow scores", [4.0, float("nan")]), ("clusters slow scores", [4.0] * 3),
        ("clusters slow steps", "many"), ("clusters slow hashes", ["one"]), ("clusters slow seconds", WITHOUT),
        ("clusters moon", {}), ("machine", None), ("game clusters", 3),
    ],
)  # fmt: skip
def test_a_strange_entry_is_one_line(path: str, value: Any, tmp_path: Path) -> None:
    content: Any = json.loads((KEPT / "local_sgd.json").read_text())
    *outer, last = path.split(" ")
    inner = content
    for name in outer:
        inner = inner[name]
    if value is WITHOUT:
        del inner[last]
    else:
        inner[last] = value
    (tmp_path / "strange.json").write_text(json.dumps(content if last else value))
    code, text = said_by(lambda: scoreboard.main([f"--results_dir={tmp_path}", "--verify"]))
    assert (code, text.count("\n")) == (2, 1), text
    assert "strange.json: is no entry of the scoreboard" in text


def test_entries_of_other_seeds_are_one_line(tmp_path: Path) -> None:
    content = json.loads((KEPT / "local_sgd.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(content))
    for of in content["clusters"].values():
        of |= {name: of[name][:3] for name in ("scores", "hashes", "seconds", "bytes")}
    (tmp_path / "b.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"b\.json: is no entry of the scoreboard \(.*number of seeds"):
        records.load(tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "name the entry, such as yourmodule:YourClass"),
        ("absent:Mine", "there is no absent.py in the current directory"),
        ("--verify ring", "--results_dir kept: holds no entry"),
        ("./mine:Mine", "must be yourmodule:YourClass, of a file yourmodule.py in the current directory"),
        ("--verify --trial", "--trial: --verify makes the runs that are kept"),
    ],
)
def test_bad_usage_is_one_line(given: str, says: str, said: Any) -> None:
    code, text = said(*given.split())
    assert (code, text.count("\n")) == (2, 1), text
    assert says in text


def test_what_is_wrong_in_a_file_is_said(said: Any, tmp_path: Path) -> None:
    for name, content in (("syntax", "class"), ("empty", ""), ("raises", "1 / 0"), ("other", "class Mine: pass")):
        (tmp_path / f"{name}_of_mine.py").write_text(content)
        code, text = said(f"{name}_of_mine:Mine", "--trial")
        assert code == 2, text
        assert f"{name}_of_mine" in text.splitlines()[-1]


def test_a_process_that_dies_ends_it_with_one_line() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(RunFailed, match="moon: a process that computed died"):
        board.in_parallel(pool, {"moon": (os._exit, (1,))}, "moon")


@pytest.mark.parametrize("does", ["raise SystemExit(0)", "self.transport.recv(0, 'x')"])
def test_what_goes_wrong_in_a_run_is_said(does: str, said: Any, tmp_path: Path) -> None:
    name = f"wrong_{len(does)}_{does.count('.')}"
    (tmp_path / f"{name}.py").write_text(EXAMPLE.replace("self.local_steps += 1", does))
    code, says = said(f"{name}:Growing", "--trial")
    assert code == 1, says
    assert f"error: {name}:Growing, " in says


def test_a_record_needs_a_small_p() -> None:
    old = [4.0 + seed / 100 for seed in range(10)]
    assert records.p_value([score - 0.001 for score in old], old) == 1 / 1024
    assert records.p_value(old, old) == 1
    assert records.p_value([score + 0.001 for score in old], old) == 1
    mixed = [score + (0.001 if seed < 3 else -0.001) for seed, score in enumerate(old)]
    assert records.p_value(mixed, old) == pytest.approx(sum(math.comb(10, k) for k in range(4)) / 1024)


def test_a_record_beats_every_other_entry(tmp_path: Path) -> None:
    old = [4.0 + seed / 100 for seed in range(10)]
    lower = [score + (0.001 if seed < 3 else -0.001) for seed, score in enumerate(old)]
    kept: dict[str, Any] = {}
    for name, scores in (("old", old), ("lower", lower), ("best", [score - 0.01 for score in old])):
        of = {"options": "", "steps": 9, "scores": scores, "hashes": ["0"] * 10, "seconds": [9.5] * 10}
        facts = {
            "entry": name, "file": f"{name}.py", "lines": 7, "game": {"clusters": {"slow": {}}}, "machine": {"cpu": ""},
            "clusters": {"slow": of | {"bytes": [1_500_000] * 10}},
        }  # fmt: skip
        assert ("no new record" in records.compared(facts, kept)) == (name == "lower")
        kept[name] = facts
        if name != "best":
            (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    assert "4.035±0.030 (best): p = 1.0000" in records.compared(kept["lower"], kept)
    rows = records.table(tmp_path, tmp_path).splitlines()
    assert rows[0] == "| entry | lines | slow | MB, slow |"
    assert rows[2] == "| [`lower`](lower.html) | [7](../lower.py) | **4.045±0.030** | 1.5 |"
    assert rows[3].startswith("| [`old`](old.html) | [7](../old.py) | **4.045±0.030** |")


# Shorter than a record, so that the interrupt, which comes while a process computes, comes soon.
SHORT = """
import sys
from functools import partial
from gradwire.scoreboard import board, command
board.RECORD, board.workers = board.Scale(9, 0.3), partial(board.workers, 1)
if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
"""


def in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process of this group lives."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


@pytest.mark.end_to_end
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "growing.py").write_text(EXAMPLE)
    run = subprocess.Popen(
        [sys.executable, "-c", SHORT, "growing:Growing", "--results_dir=kept"], cwd=tmp_path, stderr=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
    )  # fmt: skip
    assert run.stderr
    seen = ""
    while "1/3" not in seen and (part := run.stderr.read(1)):
        seen += part
    os.killpg(run.pid, signal.SIGINT)
    _, rest = run.communicate(timeout=LIMIT)
    assert run.returncode == 130, seen + rest
    assert rest.strip().splitlines()[-1] == "error: ended by SIGINT; nothing was written", rest
    assert wait_until(lambda: not {process.pid for process in psutil.process_iter() if in_group(process, run.pid)})
    assert list((tmp_path / "kept").iterdir()) == []


# What is kept


def test_entries_that_are_kept_are_of_this_game_and_of_files_as_they_are() -> None:
    kept = records.load(KEPT)
    assert set(kept) <= {*ENTRIES}
    for name, facts in kept.items():
        assert facts["game"] == board.described(), f"{name}: python -m benchmarks scoreboard {name}"
        assert {len(of["scores"]) for of in facts["clusters"].values()} == {10}
        assert (KEPT / records.file_name(name, "html")).is_file()


def test_every_strategy_has_the_options_of_its_grid() -> None:
    assert {*VALUES} | {*OTHERS} <= {*ENTRIES}
    for name in ENTRIES:
        base, rates = OTHERS.get(name, ADAM)
        strategy = game.options_of(name, f"{base} --lr {rates[0]} {VALUES.get(name, ('',))[-1]}", "fast").strategy
        check_strategy(strategy, RunSize(RANKS, strategy.count_workers(RANKS), 20, shared_memory=False))
