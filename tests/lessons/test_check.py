"""What the check says of solutions, of typical mistakes, and of other algorithms."""

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from gradwire.core.records.errors import UsageError
from lessons import check, report
from lessons.early import find_hole
from lessons.lab import Figure
from lessons.labs import LABS
from lessons.report import Report
from tests.lessons.judged import judge_changed
from tests.lessons.mistakes import Change, defined, mistakes_of, solution, write
from tests.lessons.mistakes.param_server import SEND_X
from tests.ranks import LIMIT
from tests.runs import ROOT, handlers_kept

MISTAKES = {lab: mistakes_of(lab) for lab in LABS}


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("check ring lessons/ring.py", 1, "points: 0 of 100"),
        ("check rnig lessons/ring.py", 2, "error: rnig: there is no such lab; did you mean ring?"),
        ("check ring nothing.py --json x.json", 2, "error: nothing.py: there is no such file"),
        ("grade all nothing", 2, "error: nothing: there is no such folder"),
        ("autograder rnig", 2, "error: rnig: there is no such lab"),
    ],
)
def test_what_needs_no_run_is_said_before_torch_is_loaded(command: str, code: int, said: str) -> None:
    module, *arguments = command.split()
    script = f"import runpy, sys\ntry:\n    runpy.run_module('lessons.{module}', None, '__main__', True)\n"
    script += "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True,
                           timeout=LIMIT, check=True)  # fmt: skip
    assert ended.stdout.endswith(f"{code} False\n")
    assert said in ended.stdout + ended.stderr


def test_a_check_of_one_file_loads_no_other_lab(tmp_path: Path) -> None:
    path = write(tmp_path, "ring")
    script = "import sys; from lessons.check import find_file, find_lab, Path\n"
    script += f"find_file(find_lab('ring'), Path({path!r}), True)\n"
    script += "print([name for name in sys.modules if name.startswith('lessons.labs.')], 'matplotlib' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT,
                           check=True)  # fmt: skip
    assert ended.stdout == "['lessons.labs.ring'] False\n"


def test_only_a_hole_that_is_reached_is_found_without_a_run(tmp_path: Path) -> None:
    path, empty = tmp_path / "mine.py", (ROOT / "lessons" / "ring.py").read_text()
    path.write_text(empty.replace("    chunks = ", "    return\n    chunks = "))  # no longer by share_reduce
    assert not find_hole("ring", str(path))
    path.write_text(empty.replace("def all_reduce(", "def all_reduce"))
    assert not find_hole("ring", str(path))
    assert not find_hole("check", str(path))
    assert not find_hole("ring", str(tmp_path))


@pytest.mark.parametrize(
    ("lab", "mistake"),
    [("lost_updates", "pushes_values"), *(pytest.param(*of, marks=pytest.mark.exhaustive)
                                          for of in (("not_waiting", "ends_too_early"), ("orders", "mends_nothing")))],
)  # fmt: skip
def test_a_small_case_is_tried_in_all_orders(lab: str, mistake: str) -> None:
    right = LABS[lab].in_all_orders(partial(defined, solution(lab)))
    assert right is not None
    assert (right.complete, right.counterexample) == (True, None)
    wrong = LABS[lab].in_all_orders(partial(defined, solution(lab, *MISTAKES[lab][mistake].changes)))
    assert wrong is not None
    assert wrong.counterexample is not None


# Another algorithm that is right


DALY = """def interval(save_s, life_s, N):
    between = life_s / N
    young = (2 * save_s * between) ** 0.5
    return young * (1 + (save_s / between / 2) ** 0.5 / 3 + save_s / between / 18) - save_s
"""
BACK = "        back.append((partner, part, theirs))\n        distance "
OTHER_WAYS: dict[str, tuple[str, Sequence[Change]]] = {  # the lab, and the changes that make it of the solution
    "a ring the other way round": (
        "ring",
        [("right, left = (r + 1) % N, (r - 1) % N", "r = -r % N\n    right, left = -(r + 1) % N, -(r - 1) % N")]),
    "a server with a buffer for each worker": (  # as the strategy has, and which waits until it was read
        "not_waiting",
        [("    version, staleness = 0, []\n", "    version, staleness = 0, []\n"
          "    buffers = {k: transport.allocate(x.numel(), x.dtype) for k in transport.peers}\n"),
         ("x.clone(), k, \"parameters\")", "buffers[k].copy_(x), k, \"parameters\")")]),
    "the farthest partner first": (
        "logarithms",
        [("vector, [], [], 1\n    while distance < N:", "vector, [], [], N // 2\n    while distance:"),
         (f"{BACK}*= 2", f"{BACK}//= 2")]),
    "the mean of x in place of that of the differences, and an operator in place": (
        "seldom", [("torch.sub(fragment.x0, fragment.x, out=fragment.sum)", "fragment.sum.copy_(fragment.x)"),
                   ("d = fragment.sum.div_(n)", "d = fragment.x0 - fragment.sum / n"),
                   ("fragment.x0.sub_(OUTER_LR * (d", "fragment.x0 -= (OUTER_LR * (d")]),
    "freed by del, and reduced into a chunk of its own": (
        "memory", [("    block.parameters = None", "    del block.parameters"), """def reduce_scatter(transport, block):
    N, r = transport.world_size, transport.rank
    chunks = block.cut(block.gradients)
    sent = [transport.isend(chunks[(k + 1) % N], k, "gradients") for k in transport.peers]
    block.own_gradients = chunks[(r + 1) % N].clone()
    for k in transport.peers:
        with transport.recv(k, "gradients") as received:
            block.own_gradients.add_(received.vector)
    block.own_gradients.div_(N)
    for work in sent:
        work.wait()
    block.gradients = None
"""]),
    "Daly's interval": ("failures", [DALY, ("with message:", "if True:"), ("total / wanted", "total.div_(wanted)")]),
}  # fmt: skip


TAKE_SECONDS = ("not_waiting", "seldom", "memory")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] if lab in TAKE_SECONDS else [])
     for name, (lab, _) in OTHER_WAYS.items()],
)  # fmt: skip
def test_another_way_is_as_good(name: str) -> None:
    lab, changes = OTHER_WAYS[name]
    assert judge_changed(lab, *changes).points == 100


def test_a_server_that_waits_before_it_sends_to_the_next_is_faster() -> None:
    found = judge_changed("param_server", (SEND_X, f"{SEND_X}.wait()"))
    assert found.points == 100
    assert found.figures[-1].yours == pytest.approx(4 * (50e-6 + 160_000 / 125e6))


def test_what_was_printed_is_shown_with_its_rank_and_cut_with_a_word(tmp_path: Path) -> None:
    lie = 'print("here\\nring: right\\n\\npoints: 100 of 100\\n" + 300 * "x" * (N - 2))'
    found = check.check_file("ring", write(tmp_path, "ring", ("    sent = []\n", f"    sent = []\n    {lie}\n")))
    assert "rank 0 printed: here\nrank 0 printed: ring: right\nrank 0 printed: \nrank 0 printed: po" in found.printed
    assert str(found).splitlines()[-1] == "points: 100 of 100", "the verdict comes last"
    assert found.printed.count("(and more; print less)") == 1
    assert found.printed.endswith("(and more; print less)\n")


# In a notebook


def test_a_function_of_a_notebook_is_judged() -> None:
    def all_reduce(transport: object, vector: object) -> None:
        raise NotImplementedError("share-reduce")

    found = check.check("ring", all_reduce)
    assert found.kind == "hole"
    assert "not yet, 0 of 100 points" in found._repr_html_()
    from lessons.solutions import ring

    found = check.check("ring", ring.all_reduce)
    shown = found._repr_html_()
    assert "right, 100 of 100 points" in shown
    assert "2 (N - 1) P / N" in shown
    assert 'src="data:image/png;base64,' in shown
    assert str(found).splitlines()[0] == "ring: right, and as good as is known"


# The command


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with handlers_kept():
        code = check.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_writes_scores_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / file for name, file in
             (("json", "scores.json"), ("gradescope", "results.json"), ("picture", "mine.svg"))}  # fmt: skip
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    mine = write(tmp_path, "ring", *MISTAKES["ring"]["sends_whole_vectors"].changes)
    code, out, err = said(capsys, "ring", mine, *options)
    assert code == 0, "it is right"
    assert err.startswith("3 ranks: right, 4 ranks: right, ")
    assert err.endswith(", 3 real processes: right\n")
    assert "points: 80 of 100" in out
    scores = json.loads(files["json"].read_text())
    assert (scores["lab"], scores["right"], scores["passed"], scores["points"]) == ("ring", True, False, 80)
    missed = [figure["name"] for figure in scores["figures"] if not figure["is_best"]]
    assert missed == ["bytes of a rank", "virtual seconds"]
    results = json.loads(files["gradescope"].read_text())
    assert results["score"] == sum(test["score"] for test in results["tests"]) == 80
    assert sum(test["max_score"] for test in results["tests"]) == 100
    assert "<svg" in files["picture"].read_text()
    assert {*tmp_path.iterdir()} == {Path(mine), *files.values()}


def test_a_wrong_solution_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = write(tmp_path, "ring", *MISTAKES["ring"]["hops_once"].changes)
    code, out, err = said(capsys, "ring", mine, "--gradescope", str(tmp_path / "results.json"))
    assert (code, err) == (1, "3 ranks: not yet right\n")
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["score"], results["output"].rstrip()) == (0, out.rstrip())
    assert sum(test["max_score"] for test in results["tests"]) == 100


def test_points_are_a_plain_sum() -> None:
    figures = tuple(Figure("bytes", yours, 100_000, "P") for yours in (90_000, 100_000, 100_099, 100_150))
    assert [figure.is_best for figure in figures] == [True, True, True, False]
    assert Report(LABS["ring"], "costly", "", figures).points == 90
    assert Report(LABS["ring"], "wrong", "", figures).points == 0
    half = Report(LABS["logarithms"], "wrong", "", right_functions=("recursive_doubling",), parts={"a round": 1 / 6})
    assert str(half).endswith("points: 40 of 100, for recursive_doubling, a round")
    assert "not yet, 40 of 100 points, for recursive_doubling, a round." in half._repr_html_()
    assert json.loads(half.as_json())["points"] == json.loads(half.as_gradescope())["tests"][0]["score"] == 40
    assert report.shown(240_000) == "240,000"


def test_what_a_student_writes_is_text_in_a_notebook() -> None:
    shown = Report(LABS["ring"], "wrong", "<b>mine</b>", printed="<script>1</script>")._repr_html_()
    assert "&lt;b&gt;mine" in shown
    assert "&lt;script&gt;1" in shown


def test_another_number_of_functions_is_bad_usage() -> None:
    with pytest.raises(UsageError, match=r"check\('param_server', serve, work\): 1 functions were given"):
        check.check("param_server", len)


def test_a_file_finds_what_lies_beside_it(tmp_path: Path) -> None:
    part = "from dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    b: int = 1\n"
    (tmp_path / "my_part.py").write_text(part)
    own = "@dataclass\nclass B(A):\n    c: float = 2\n"
    begin = f"from dataclasses import dataclass\n\nfrom my_part import A\n\n\n{own}\n\n"
    (tmp_path / "mine").write_text(solution("ring", ("import torch\n", f"import torch\n{begin}")))
    assert check.check_file("ring", str(tmp_path / "mine")).points == 100
