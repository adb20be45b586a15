"""Files that hang, end or break: one line each, which names what ran; and right ones on a busy machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lessons import check, processes, source
from lessons.labs import LABS
from lessons.report import Report
from lessons.source import Source
from tests.lessons.judged import judge_changed, judge_here
from tests.lessons.mistakes import solution
from tests.ranks import LIMIT
from tests.runs import ROOT

SOLVED = (check.SOLUTIONS / "ring.py").read_text()
PRELUDE = "import os\nimport sys\nimport time\n\nimport torch\n\n\ndef all_reduce(transport, vector):\n"  # 8 lines


def judged(tmp_path: Path, source: str, judge: Callable[[str, str], Report] = check.check_file) -> Report:
    path = tmp_path / "mine.py"
    path.write_text(source)
    found = judge("ring", str(path))
    assert "\n" not in found.verdict
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_COMPUTING_S", 1.0)


def body(text: str) -> str:
    return PRELUDE + "".join(f"    {line}\n" for line in text.splitlines())


# What breaks


@pytest.mark.parametrize(
    ("source", "kind", "text"),
    [
        ("def all_reduce(transport, vector:\n    pass\n", "import", "cannot be imported: SyntaxError"),
        ("import no_such_module\n", "import", "No module named 'no_such_module', line 1 of mine.py"),
        ("def allreduce(transport, vector):\n    pass\n", "missing", "there is no function all_reduce"),
        ("def all_reduce(vector):\n    pass\n", "raised", "TypeError: all_reduce() takes 1 positional argument"),
        (body("os.kill(os.getpid(), 9)"), "died", "its process was killed by SIGKILL"),
        (body("transport.isend(vector, transport.rank, 'x')"), "raised", "rank 0 cannot send to rank 0"),
        (body("vector.fill_(float('nan'))"), "wrong", "rank 0 ends with NaN or infinity"),
        (body("vector.data = vector.double()"), "damage", "its vector, a tensor [12] of float32, a te"),
        (body("yield vector"), "returned", "all_reduce returned a generator: with `yield` in it, a function does noth"),
        (body("if transport.rank == 0:\n    transport.recv(1, 'x')"), "deadlock",
         "rank 0 waits for 'x' from rank 1, which has returned without sending it"),
        (body("N, r = transport.world_size, transport.rank\ntransport.isend(vector, (r + 1) % N, 'a')\n"
              "transport.recv((r - 1) % N, 'b')"), "deadlock",
         "rank 0 waits for 'b' from rank 2; rank 1 waits for 'b' from rank 0; rank 2 waits for 'b' from rank 1; but "
         "rank 0 has sent rank 1 'a'"),
        (SOLVED.replace("    vector.div_(N)", "    vector.div_(N)\n    transport.isend(None, right, 'x')"), "unread",
         "sent an object to rank 1, which never received it"),
    ],
)  # fmt: skip
def test_what_breaks_gets_one_line(tmp_path: Path, source: str, kind: str, text: str) -> None:
    found = judged(tmp_path, source, check.check_file if kind == "died" else judge_here)
    assert (found.kind, found.points) == (kind, 40 if kind == "unread" else 0), found.verdict
    assert text in found.verdict.replace("rank 1 raised", "rank 0 raised").replace("rank 2 raised", "rank 0 raised")


ENDLESS = [
    (body("while True:\n    pass"), "of mine.py"),
    (body("while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"), "of mine.py"),
    (body("while True:\n    transport.isend(None, 1 - transport.rank % 2, 'x')"), "an endless loop"),
    ("while True:\n    pass\n", "of mine.py"),
    (body("torch.randn(40_000, 40_000) @ torch.randn(40_000, 40_000)"), "of mine.py"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "text"), [ENDLESS[0], *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ENDLESS[1:])],
)  # fmt: skip
@pytest.mark.usefixtures("impatient")
def test_what_never_ends_is_ended(tmp_path: Path, source: str, text: str) -> None:
    found = judged(tmp_path, source)
    assert (found.kind, found.points) == ("loop", 0), found.verdict
    assert text in found.verdict
    assert "an endless loop?" in found.verdict


IN_ONE_ORDER = "    base.copy_(x)\n    while type(transport).__name__ == 'Ordered': pass\n"
RUNNING = [
    pytest.param("ring", "import time\nwhile True: pass\n", "import of your functions", marks=pytest.mark.exhaustive),
    pytest.param(
        "ring", SOLVED.replace("    vector.div_(N)", "    vector.div_(N)\n    while len(vector) == 24: pass"),
        "N = 4, 24 elements", marks=pytest.mark.exhaustive,
    ),
    ("lost_updates", solution("lost_updates", ("    base.copy_(x)\n", IN_ONE_ORDER)),
     "one of all orders of a small case"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("lab", "source", "what"), RUNNING)
@pytest.mark.usefixtures("impatient")
def test_the_line_names_what_ran(tmp_path: Path, lab: str, source: str, what: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    found = check.check_file(lab, str(path))
    assert found.verdict.startswith(f"{what}: your code does not come to an end at line "), found.verdict
    assert "of mine.py (while" in found.verdict


HANGS = "on 3 real processes: your code does not come to an end at line "
ON_PROCESSES = [
    ("vector.zero_()", "on 3 real processes the results differ"),
    ("raise ValueError('not here')", "raised ValueError: not here"),
    pytest.param("while True: pass", HANGS, marks=pytest.mark.exhaustive),
    pytest.param("transport.recv(left, 'never')", HANGS, marks=pytest.mark.exhaustive),
    pytest.param("__import__('time').sleep(1000)", HANGS, marks=pytest.mark.exhaustive),
]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "text"), ON_PROCESSES)
@pytest.mark.usefixtures("impatient")
def test_what_goes_wrong_on_real_processes_only_is_told(tmp_path: Path, code: str, text: str) -> None:
    differs = f"\n    if type(transport).__name__ != 'LabTransport':\n        {code}\n"
    found = judged(tmp_path, SOLVED.replace("    vector.div_(N)", "    vector.div_(N)" + differs))
    assert (found.kind, found.points) == ("real", 30), "half, for it is right in virtual time"
    assert text in found.verdict


def test_a_rank_knows_nothing_of_another(tmp_path: Path) -> None:
    """What a file keeps for all ranks is kept by each: as on a cluster."""
    share = PRELUDE.replace("def all_reduce", "known = {}\n\n\ndef all_reduce") + (
        "    known[transport.rank] = vector.clone()\n"
        "    vector.copy_(torch.stack(list(known.values())).mean(0))\n"
    )  # fmt: skip
    assert "without the part of rank 1, 2" in judged(tmp_path, share, judge_here).verdict


# What is right


def test_only_what_runs_the_students_code_is_timed_and_each_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, path = LABS["lost_updates"], check.SOLUTIONS / "lost_updates.py"
    running, examined = [""], []
    find_faults = type(lab).find_faults

    def note(*arguments: Any) -> Any:
        examined.append(running[-1])
        return find_faults(*arguments)

    monkeypatch.setattr(type(lab), "find_faults", note)
    source._compile.cache_clear()
    played = processes.play_cases(lab, Source.of_file(path), lambda run: None, running.append)
    assert (played.fault, played.left_out) == (None, "")
    assert examined == [""] * (len(lab.cases) + 1)
    assert running[-1] == ""
    assert running.count("one of all orders of a small case") > 100
    assert source._compile.cache_info().misses == 1


def test_a_judge_that_runs_out_of_time_says_so_and_takes_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_ORDERS_S", -1.0)
    found = judge_changed("lost_updates")
    assert (found.kind, found.points) == ("right", 100)
    assert found.verdict.endswith("; the judge ran out of time before it had tried all orders")


LONGEST = "orders"  # the lab whose solution is tried in the most orders
BUSY = [pytest.param(lab, marks=pytest.mark.end_to_end if lab == LONGEST else pytest.mark.exhaustive) for lab in LABS]


@pytest.mark.skipif(sys.platform != "linux", reason="a process is bound to processors on Linux")
@pytest.mark.xdist_group("busy loops")  # which take all processors
@pytest.mark.parametrize("lab", BUSY)
def test_a_solution_is_right_beside_a_busy_loop_on_each_of_two_processors(lab: str) -> None:
    processors = sorted(os.sched_getaffinity(0))[:2]
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # it ends with this process, however that ends
    commands = [*[["-c", loop]] * 2, ["-m", "lessons.check", lab, str(check.SOLUTIONS / f"{lab}.py")]]
    started: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            started.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True))
            os.sched_setaffinity(started[-1].pid, processors)
        out, _ = started[-1].communicate(timeout=3 * LIMIT)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert out.endswith("points: 100 of 100\n"), out
