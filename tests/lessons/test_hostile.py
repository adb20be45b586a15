"""Files that hang, end or break: one line each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lessons import check, processes
from lessons.report import Report
from tests.lessons.judged import judge_here

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
    monkeypatch.setattr(processes, "_COMPUTING_S", 2.0)


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
    assert (found.kind, found.points) == (kind, 0), found.verdict
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
    ("source", "text"), [ENDLESS[0], *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in ENDLESS[1:])],
)  # fmt: skip
@pytest.mark.usefixtures("impatient")
def test_what_never_ends_is_ended(tmp_path: Path, source: str, text: str) -> None:
    found = judged(tmp_path, source)
    assert (found.kind, found.points) == ("loop", 0), found.verdict
    assert text in found.verdict
    assert "an endless loop?" in found.verdict


HANGS = "on 3 real processes: your code does not come to an end at line "
ON_PROCESSES = [
    ("vector.zero_()", "on 3 real processes the results differ"),
    ("raise ValueError('not here')", "raised ValueError: not here"),
    ("while True: pass", HANGS),
    pytest.param("transport.recv(left, 'never')", HANGS, marks=pytest.mark.exhaustive),
    pytest.param("__import__('time').sleep(1000)", HANGS, marks=pytest.mark.exhaustive),
]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "text"), ON_PROCESSES)
@pytest.mark.usefixtures("impatient")
def test_what_goes_wrong_on_real_processes_only_is_told(tmp_path: Path, code: str, text: str) -> None:
    differs = f"\n    if type(transport).__name__ != 'LabTransport':\n        {code}\n"
    found = judged(tmp_path, SOLVED.replace("    vector.div_(N)", "    vector.div_(N)" + differs))
    assert (found.kind, found.points) == ("real", 0), found.verdict
    assert text in found.verdict


def test_a_rank_knows_nothing_of_another(tmp_path: Path) -> None:
    """What a file keeps for all ranks is kept by each: as on a cluster."""
    share = PRELUDE.replace("def all_reduce", "known = {}\n\n\ndef all_reduce") + (
        "    known[transport.rank] = vector.clone()\n"
        "    vector.copy_(torch.stack(list(known.values())).mean(0))\n"
    )  # fmt: skip
    assert "without the part of rank 1, 2" in judged(tmp_path, share, judge_here).verdict
