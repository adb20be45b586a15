"""A class is graded: whatever a submission does costs itself only, and nothing that it has started is left."""

import csv
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lessons import submissions
from lessons.check import SOLUTIONS
from lessons.grade import Task, Verdict, page_of, verdict_of
from lessons.lab import Fault
from lessons.labs import LABS
from lessons.report import Report
from lessons.submissions import find_file, find_flags, key_of
from tests.ranks import LIMIT
from tests.runs import ROOT

SOLVED = (SOLUTIONS / "ring.py").read_text()
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the grader needs Linux")
# Whatever this process starts holds the lock, since it is handed down.
PRELUDE = """import ctypes, faulthandler, fcntl, os, signal, time
import torch

def all_reduce(transport, vector):
    lock = os.open("LOCK", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_SH)
    def parent(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    def undo_limits():
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    def stay():
        undo_limits()
        while True:
            time.sleep(1)
"""
DETACHED = "if os.fork() == 0:\n    os.setsid()\n    os.fork() and os._exit(0)\n    stay()\n"
ENDED = "its process ended with the fork server, its parent, which was killed by SIGKILL"
HOSTILE = {
    "bomb": ("while True:\n    os.fork()", "limit", "your code started more than 32 processes"),
    "detaches": (DETACHED + "raise ValueError('on')", "raised", "raised ValueError: on"),
    "kills_parent": ("os.kill(os.getppid(), 9)\nstay()", "died", ENDED),
    "fills": (
        "undo_limits()\nx = [torch.ones(100_000_000) for _ in range(100)]",
        "limit",
        "needed more than 4000 MB of memory",
    ),
    "kills_group": ("os.killpg(0, 9)", "died", ENDED),
    "kills_judge": (DETACHED + "os.kill(parent(os.getppid()), 9)\nstay()", "failed", "what judges it was killed"),
    "prints": (
        "for _ in range(10_000):\n    os.write(1, b'x' * 1000)\n    print('y' * 1000)",
        "wrong",
        "without the part",
    ),
    "segfaults": ("ctypes.string_at(0)", "died", "its process was killed by SIGSEGV"),
}


def hostile(body: str, lock: Path) -> str:
    return PRELUDE.replace('"LOCK"', repr(str(lock))) + "".join(f"    {line}\n" for line in body.splitlines())


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "lessons.grade", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_held(lock: Path) -> bool:
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def rows_of(table: Path) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(table.open(newline=""))}


@LINUX
@pytest.mark.slow
def test_what_a_submission_does_costs_itself_only_and_leaves_nothing(tmp_path: Path) -> None:
    folder, table = tmp_path / "folder", tmp_path / "grades.csv"
    (folder / "right").mkdir(parents=True)
    (folder / "right" / "ring.py").write_text(SOLVED)
    (folder / "copies.py").write_text("from lessons.solutions.ring import all_reduce\n")
    (folder / "notes.txt").write_text("")
    (folder / "m\udcfcller.py").write_text("def all_reduce(:")  # a name that is no UTF-8
    for name, (body, _, _) in HOSTILE.items():
        (folder / f"{name}.py").write_text(hostile(body, tmp_path / f"{name}.lock"))
    process = start("ring", str(folder), "--csv", str(table))
    out, err = process.communicate(timeout=LIMIT * 5)
    assert process.returncode == 1, f"one could not be judged\n{out}{err}"
    rows = rows_of(table)
    assert (rows["right"]["points"], rows["right"]["flags"]) == ("100", "")
    assert (rows["copies"]["points"], rows["copies"]["kind"]) == ("100", "right")
    assert rows["m ller"]["kind"] == "import"
    assert rows["copies"]["flags"] == "copies.py has from lessons.solutions.ring import all_reduce"
    for name, (_, kind, text) in HOSTILE.items():
        assert (rows[name]["kind"], rows[name]["points"]) == (kind, "0"), rows[name]
        assert text in rows[name]["first mistake"]
        assert not is_held(tmp_path / f"{name}.lock"), f"{name} is still there"
    assert "'notes.txt': left out" in err
    lines = out.splitlines()
    assert len(lines) == len(rows) + 1
    assert any("copies  ring  100  right" in line and "FLAGGED: copies.py has" in line for line in lines)
    kept = sum(row["kind"] not in ("limit", "failed") for row in rows.values())
    assert len([*table.with_suffix(".verdicts").iterdir()]) == kept < len(rows)
    page = table.with_suffix(".html").read_text()
    assert page.count("data:image/png;base64,") >= 2


@LINUX
@pytest.mark.slow
def test_an_interrupt_keeps_verdicts_and_leaves_no_process(tmp_path: Path) -> None:
    folder, table, lock = tmp_path / "folder", tmp_path / "grades.csv", tmp_path / "lock"
    folder.mkdir()
    (folder / "a.py").write_text(SOLVED)
    (folder / "b.py").write_text(hostile(DETACHED + "stay()", lock))
    process = start("all", str(folder), "--csv", str(table), "--jobs", "2")
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2 * len(LABS) - 1)]  # all but that which hangs
    assert any(line.startswith("a  ring  100  right") for line in lines)
    assert "there is no links.py, and no file that defines seconds_of_server" in "".join(lines)
    assert is_held(lock)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT
    n = 2 * len(LABS)
    assert err.endswith("error: ended by SIGINT; verdicts are kept; the same command continues\n")
    assert not is_held(lock)
    assert not table.exists()
    process = start("all", str(folder), "--csv", str(table), "--seconds", "2")
    out, _ = process.communicate(timeout=LIMIT)
    assert out.splitlines()[0].startswith(f"{n - 1} of {n} have a verdict already")
    assert out.splitlines()[1:-1] == ["b  ring    0  your code took more than 2 s"]
    assert process.returncode == 0


@LINUX
@pytest.mark.slow
def test_what_ends_the_grading_is_not_met_again_at_once(tmp_path: Path) -> None:
    """Of the same user it can: the grades of all others are written without it, and then it is tried again."""
    folder, table, lock = tmp_path / "folder", tmp_path / "grades.csv", tmp_path / "lock"
    folder.mkdir()
    (folder / "a.py").write_text(hostile(DETACHED + "raise ValueError", lock))
    (folder / "b.py").write_text(f"import fcntl\nfcntl.flock(open({str(lock)!r}), fcntl.LOCK_EX | fcntl.LOCK_NB)")
    (folder / "c.py").write_text(hostile("os.kill(parent(parent(os.getppid())), 9)\nstay()", tmp_path / "c"))
    (folder / "d.py").write_text("")
    for crashes in (True, False, True):
        process = start("ring", str(folder), "--csv", str(table), "--jobs", "1")
        out, err = process.communicate(timeout=LIMIT)
        assert process.returncode == (-signal.SIGKILL if crashes else 1), out + err
        assert table.exists() != crashes
        if table.exists():
            kinds = {name: row["kind"] for name, row in rows_of(table).items()}
            assert kinds == {"a": "raised", "b": "missing", "c": "failed", "d": "missing"}, "b has found nothing of a"
            table.unlink()


# What was handed in


def test_the_file_of_a_lab_is_found_or_what_is_ambiguous_is_said(tmp_path: Path) -> None:
    def found(lab: str, alone: bool = True) -> str:
        try:
            return str(find_file(LABS[lab], tmp_path, alone).relative_to(tmp_path))
        except Fault as fault:
            return str(fault)

    assert found("ring") == "there is no ring.py, and no file that defines all_reduce"
    (tmp_path / "mine.py").write_text("def all_reduce(:\n")
    assert found("ring") == "mine.py", "which then cannot be imported"
    assert "there is no ring.py" in found("ring", alone=False)
    (tmp_path / "mine.py").write_text(SOLVED)
    (tmp_path / "other.py").write_text((SOLUTIONS / "links.py").read_text())
    assert (found("ring"), found("links")) == ("mine.py", "other.py"), "that of the links has an all_reduce, too"
    (tmp_path / "again.py").write_text(SOLVED)
    assert found("ring") == "which file is it? again.py, mine.py; name one ring.py, or leave the others out"
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "ring.py").write_text("")
    (tmp_path / "deep" / "ring.py").write_text("")
    assert found("ring", alone=False) == "deep/ring.py"
    (tmp_path / "ring.py").write_text("")
    assert found("ring") == "ring.py"


@pytest.mark.parametrize(
    ("text", "flagged"),
    [
        ("import lessons.solutions.ring", True),
        ("from lessons import (\n    solutions)", True),
        ("def f():\n    from strategies.collectives import share_reduce", True),
        ("from strategies import (\n    RingAllReduce,\n    collectives)", True),
        ("import strategies as s", True),
        ("import importlib\nimportlib.import_module('lessons.solutions.ring')", True),
        ("__import__('strategies')", True),
        ("exec(open('/x/lessons/solutions/ring.py').read())", True),
        ("from lessons.labs.not_waiting_words import descend", True),
        ("'''As strategies/collectives.py has it.'''  # strategies", False),
        ((ROOT / "lessons" / "ring.py").read_text(), False),
        ("from lessons import lab\nimport torch", False),
    ],
)
def test_what_uses_solutions_or_strategies_is_flagged(tmp_path: Path, text: str, flagged: bool) -> None:
    for name in ("ring.py", "helper.py"):
        (tmp_path / "ring.py").write_text("")
        (tmp_path / name).write_text(text)
        flags = find_flags(LABS["ring"], tmp_path / "ring.py", tmp_path)
        assert (len(flags), any(name in flag for flag in flags)) == (flagged, flagged)
    (tmp_path / name).rename(tmp_path / "links.py")
    (tmp_path / "my_shards.py").write_text(f"{text}\ndef step():\n    pass\n")
    assert not find_flags(LABS["ring"], tmp_path / "ring.py", tmp_path), "which are graded as other labs'"


def test_a_key_changes_with_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ring.py").write_text("a")
    key = key_of(LABS["ring"], tmp_path)
    assert key != key_of(LABS["links"], tmp_path)
    with monkeypatch.context() as changed:
        changed.setattr(submissions, "LESSONS", SOLUTIONS)
        assert key != key_of(LABS["ring"], tmp_path)
    (tmp_path / "ring.py").write_text("b")
    assert key != key_of(LABS["ring"], tmp_path)


def test_what_a_student_writes_is_text_in_the_grades(tmp_path: Path) -> None:
    task = Task(LABS["ring"], tmp_path / "\t=<i>me", tmp_path)
    one = verdict_of(task, Report(LABS["ring"], "wrong", "\x1b[2K<script>1</script>\nmore"), ["<b>"])
    assert one.cells == ["' =<i>me", "ring", "0", "wrong", " [2K<script>1</script>", "<b>"]
    page = page_of([one, Verdict(one.cells, "")])
    assert not any(tag in page for tag in ("<i>", "<b>", "<script"))
