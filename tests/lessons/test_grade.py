"""A class is graded: whatever a submission does costs itself only, and nothing that it has started is left."""

import csv
import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lessons import grade
from lessons.check import SOLUTIONS
from lessons.grade import Task, Verdict, page_of, verdict_of
from lessons.labs import LABS
from lessons.report import Report
from lessons.sandbox import landlock_version
from lessons.submissions import key_of
from tests.ranks import LIMIT
from tests.runs import ROOT, handlers_kept

SOLVED = (SOLUTIONS / "ring.py").read_text()
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the grader needs Linux")
LANDLOCK = pytest.mark.skipif(not landlock_version(), reason="this kernel has no Landlock")
PRELUDE = """import ctypes, fcntl, os, signal, time
import torch

def all_reduce(transport, vector):
    fcntl.flock(os.open("/LOCK", os.O_RDONLY), fcntl.LOCK_SH)
    def parent(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
    def undo_limits():
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    def stay():
        undo_limits()
        while True:
            time.sleep(1)
"""
REFUSED = "raised PermissionError: [Errno "
HOSTILE = {
    "bomb": ("while True:\n    os.fork()", "raised", REFUSED),
    "kills_parent": ("os.kill(os.getppid(), 9)\nstay()", "raised", REFUSED),
    "fills": (
        "undo_limits()\nx = [torch.ones(100_000_000) for _ in range(100)]",
        "limit",
        "needed more than 4000 MB of memory",
    ),
    "kills_group": ("os.killpg(0, 9)", "raised", REFUSED),
    "kills_judge": ("os.kill(parent(os.getppid()), 9)\nstay()", "raised", REFUSED),
    "kills_itself": ("os.kill(os.getpid(), 9)", "died", "its process was killed by SIGKILL"),
    "forges": ("open('/VERDICTS/' + 32 * 'a' + '.json', 'w')", "raised", REFUSED),
    "removes": ("os.unlink('/LOCK')", "raised", REFUSED),
    "prints": (
        "for _ in range(10_000):\n    os.write(1, b'x' * 1000)\n    print('y' * 1000)",
        "wrong",
        "without the part",
    ),
    "segfaults": ("ctypes.string_at(0)", "died", "its process was killed by SIGSEGV"),
}


# Top-level lines of files that would get all points.
COPIES = {
    "imports": "from lessons.solutions.ring import all_reduce",
    "looks_up": "all_reduce = getattr(__import__('lessons.' + 'solutions.ring').solutions.ring, 'all_' + 'reduce')",
    "opens": f"exec(open({str(SOLUTIONS / 'ring.py')!r}).read())",
    "opens_another": "exec(open('FOLDER/right/ring.py').read())",
}


FEW = ("bomb", "kills_judge", "forges", "fills", "imports", "opens_another")


def hostile(body: str, lock: Path) -> str:
    lock.touch()
    text = PRELUDE + "".join(f"    {line}\n" for line in body.splitlines())
    return text.replace("/LOCK", str(lock)).replace("/VERDICTS", str(lock.parent / "grades.verdicts"))


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


def until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def kill_judge(grader: int, lock: Path) -> None:
    """Kill the only judge of a grader when its submission has the lock."""
    until(lambda: is_held(lock))
    (judge,) = psutil.Process(grader).children()
    judge.kill()
    until(lambda: not is_held(lock))


def rows_of(table: Path) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(table.open(newline=""))}


@LINUX
@LANDLOCK
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FEW, id="few", marks=pytest.mark.end_to_end),
        pytest.param((*HOSTILE, *COPIES), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_what_a_submission_does_costs_itself_only_and_leaves_nothing(tmp_path: Path, names: Sequence[str]) -> None:
    copies = {name: line for name, line in COPIES.items() if name in names}
    bodies = {name: of for name, of in HOSTILE.items() if name in names}
    folder, table = tmp_path / "folder", tmp_path / "grades.csv"
    (folder / "right").mkdir(parents=True)
    (folder / "right" / "ring.py").write_text(SOLVED)
    for name, line in copies.items():
        (folder / f"{name}.py").write_text(line.replace("FOLDER", str(folder)))
    (folder / "links.py").symlink_to(SOLUTIONS / "ring.py")
    (folder / "links_to_another").symlink_to(folder / "right")
    (folder / "links_inside").mkdir()
    (folder / "links_inside" / "ring.py").symlink_to(folder / "right" / "ring.py")
    (folder / "notes.txt").write_text("")
    (folder / "m\udcfcller.py").write_text("def all_reduce(:")  # a name that is no UTF-8
    for name, (body, _, _) in bodies.items():
        (folder / f"{name}.py").write_text(hostile(body, tmp_path / f"{name}.lock"))
    process = start("ring", str(folder), "--csv", str(table))
    out, err = process.communicate(timeout=LIMIT * 5)
    assert process.returncode == 0, out + err
    rows = rows_of(table)
    assert (rows["right"]["points"], rows["right"]["flags"]) == ("100", "")
    assert rows["m ller"]["kind"] == "import"
    for name in copies:
        assert (rows[name]["kind"], rows[name]["points"]) == ("import", "0")
        assert "PermissionError" in rows[name]["first mistake"]
        assert rows[name]["flags"].startswith(f"{name}.py has ")
    for name, path in (("links", "links.py"), ("links_to_another",) * 2, ("links_inside", "links_inside/ring.py")):
        assert rows[name]["first mistake"].startswith(f"{path} is a link to what was not handed in")
        assert rows[name]["points"] == "0"
    for name, (_, kind, text) in bodies.items():
        assert (rows[name]["kind"], rows[name]["points"]) == (kind, "0"), rows[name]
        assert text in rows[name]["first mistake"]
        assert not is_held(tmp_path / f"{name}.lock"), f"{name} is still there"
    assert "'notes.txt': left out" in err
    lines = out.splitlines()
    assert len(lines) == len(rows) + 1
    assert any(line.startswith("imports  ring    0") and "FLAGGED: imports.py has" in line for line in lines)
    kept = sum(row["kind"] not in ("limit", "failed") for row in rows.values())
    assert len([*table.with_suffix(".verdicts").iterdir()]) == kept < len(rows)
    page = table.with_suffix(".html").read_text()
    assert "data:image/png;base64," in page


@LINUX
@LANDLOCK
@pytest.mark.end_to_end
def test_a_grading_that_is_killed_or_interrupted_leaves_no_process_and_continues(tmp_path: Path) -> None:
    folder, table, lock = tmp_path / "folder", tmp_path / "grades.csv", tmp_path / "lock"
    folder.mkdir()
    (folder / "a.py").write_text("def all_reduce(:")
    (folder / "b.py").write_text(hostile("stay()", lock))
    process = start("ring", str(folder), "--csv", str(table), "--jobs", "1")
    until(lambda: is_held(lock))
    process.kill()
    process.communicate(timeout=LIMIT)
    until(lambda: not is_held(lock))
    assert not table.exists()
    process = start("ring", str(folder), "--csv", str(table))
    assert process.stdout
    assert process.stdout.readline().startswith("1 of 2 have a verdict already")
    until(lambda: is_held(lock))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGINT
    assert err.endswith("error: ended by SIGINT; verdicts are kept; the same command continues\n")
    assert not is_held(lock)
    assert not table.exists()
    out, _ = start("ring", str(folder), "--csv", str(table), "--seconds", "2").communicate(timeout=LIMIT)
    assert out.splitlines()[0].startswith("1 of 2 have a verdict already")
    assert out.splitlines()[1:-1] == ["b  ring    0  your code took more than 2 s"]
    assert sum(row["kind"] == "import" for row in csv.DictReader(table.open(newline=""))) == 1


@LINUX
@LANDLOCK
@pytest.mark.exhaustive
def test_a_judge_that_is_killed_judges_again_once_at_the_end(tmp_path: Path) -> None:
    folder, table, lock = tmp_path / "folder", tmp_path / "grades.csv", tmp_path / "lock"
    folder.mkdir()
    (folder / "a.py").write_text(hostile("stay()", lock))
    (folder / "b.py").write_text("def all_reduce(:")
    process = start("ring", str(folder), "--csv", str(table), "--jobs", "1", "--seconds", "100000")
    assert process.stdout
    kill_judge(process.pid, lock)
    assert process.stdout.readline().startswith("b  ring    0  cannot be imported")
    kill_judge(process.pid, lock)
    out, _ = process.communicate(timeout=LIMIT)
    assert out.startswith("a  ring    0  could not be judged: what judges it was killed, twice")
    assert process.returncode == 1
    assert len([*table.with_suffix(".verdicts").iterdir()]) == 1


@LINUX
def test_who_gives_no_verdict_is_judged_again_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of processes are judges of which that of a.py is always killed."""
    judged: list[str] = []

    class Judge(SimpleNamespace):
        def __init__(self, call: partial[bytes], *_: object) -> None:
            super().__init__(task=call.args[0], pid=0, exceeded="", seconds=1.0)
            judged.append(self.task.submission.name)

        def has_ended(self) -> bool:
            return True

        def result(self) -> bytes:
            verdict = verdict_of(self.task, Report(self.task.lab, "hole", ""))
            return b"" if self.task.submission.name == "a.py" else json.dumps(verdict).encode()

    for name in ("adopt_orphans", "end_below"):
        monkeypatch.setattr(grade, name, lambda *_: None)
    monkeypatch.setattr(grade, "Contained", Judge)
    tasks = [Task(LABS["ring"], tmp_path / name, tmp_path) for name in ("a.py", "b.py", "c.py")]
    settings = grade.Settings("ring", str(tmp_path), jobs=1)
    found = [(task.submission.name, verdict.cells[3]) for task, verdict in grade.grade(tasks, settings)]
    assert judged == ["a.py", "b.py", "c.py", "a.py"]
    assert found == [("b.py", "hole"), ("c.py", "hole"), ("a.py", "failed")]


@LINUX
def test_where_the_kernel_protects_no_file_no_verdict_is_kept_or_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_here(tasks: Sequence[Task], _: grade.Settings) -> Iterator[tuple[Task, Verdict]]:
        yield from ((task, verdict_of(task, Report(task.lab, "missing", "nothing is in it"))) for task in tasks)

    folder, table = tmp_path / "folder", tmp_path / "grades.csv"
    folder.mkdir()
    (folder / "a.py").write_text("")
    forged = table.with_suffix(".verdicts") / f"{key_of(LABS['ring'], folder / 'a.py')}.json"
    forged.parent.mkdir()
    forged.write_text(json.dumps(Verdict(["a", "ring", "100", "right", "", ""], "")))
    monkeypatch.setattr(grade, "landlock_version", lambda: 0)
    monkeypatch.setattr(grade, "grade", judge_here)
    with handlers_kept():
        assert grade.main(["all", str(folder), "--csv", str(table)]) == 0
    assert "no verdict is kept: this kernel has no Landlock" in capsys.readouterr().err
    rows = [*csv.DictReader(table.open(newline=""))]
    assert [(row["lab"], row["points"]) for row in rows] == [(lab, "0") for lab in LABS]
    assert "100" in forged.read_text()


def test_what_a_student_writes_is_text_in_the_grades(tmp_path: Path) -> None:
    task = Task(LABS["ring"], tmp_path / "\t=<i>me", tmp_path)
    verdict = verdict_of(task, Report(LABS["ring"], "wrong", "\x1b[2K<script>1</script>\nmore"), ["<b>"])
    assert verdict.cells == ["' =<i>me", "ring", "0", "wrong", " [2K<script>1</script>", "<b>"]
    page = page_of([verdict, Verdict(verdict.cells, "")])
    assert not any(tag in page for tag in ("<i>", "<b>", "<script"))
