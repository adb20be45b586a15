"""One contract for all labs, from their declarations: what the check says of solutions, of mistakes, and of nothing."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.records.formulas import evaluate
from lessons import check, processes
from lessons.early import find_hole
from lessons.judge import draw
from lessons.lab import BANDWIDTH, LATENCY, first
from lessons.labs import LABS
from lessons.release import keep_costs
from tests.lessons.judged import judge_changed, judge_here, play_solution
from tests.lessons.mistakes import mistakes_of, write
from tests.runs import ROOT

MISTAKES = {lab: mistakes_of(lab) for lab in LABS}


def group(lab: str) -> pytest.MarkDecorator:
    """Keep a lab's tests on one worker, which plays its solution once."""
    return pytest.mark.xdist_group(f"lab {lab}")


EACH = [pytest.param(lab, marks=group(lab)) for lab in LABS]
LONG = [pytest.mark.exhaustive]


def all_mistakes() -> Iterator[Any]:
    """All mistakes of all labs: by default the first of each kind of verdict in a lab."""
    for lab, mistakes in MISTAKES.items():
        kinds: set[str] = set()
        for name, mistake in mistakes.items():
            yield pytest.param(lab, name, marks=[group(lab), *(LONG if mistake.kind in kinds else [])])
            kinds.add(mistake.kind)


# That of the orders takes as long as all others, and is judged beside busy loops too.
@pytest.mark.parametrize(
    "lab", [pytest.param(lab, marks=[group(lab), *(LONG if lab == "orders" else [])]) for lab in LABS]
)
def test_a_solution_gets_all_points_for_what_its_closed_forms_say(lab: str) -> None:
    found = judge_changed(lab)
    assert (found.verdict, found.points) == ("right, and as good as is known", 100)
    assert (found.right, found.passed) == (True, True)
    case = LABS[lab].scored
    known = {"N": case.n, "P": case.length * case.dtype.itemsize, "elements": case.length, "k": 400, "latency": LATENCY,
             "bandwidth": BANDWIDTH}  # fmt: skip
    for figure in found.figures:
        formula = figure.formula.partition(",")[0].replace("log2 N", "log2(N)")
        with suppress(SyntaxError, NameError):  # else it is written in words
            assert figure.yours == pytest.approx(evaluate(formula, known), rel=1e-3), figure


@pytest.mark.parametrize("lab", ["failures", *(pytest.param(lab, marks=pytest.mark.exhaustive) for lab in LABS)])
def test_a_solution_is_right_on_processes(lab: str) -> None:
    assert check.check_file(lab, str(check.SOLUTIONS / f"{lab}.py")).points == 100


@pytest.mark.parametrize("lab", EACH)
def test_what_a_release_keeps_of_a_solution_has_its_costs(lab: str) -> None:
    run = play_solution(lab, LABS[lab].scored)
    kept = keep_costs(LABS[lab], replace(run, sent=[replace(message) for message in run.sent]))
    assert kept.inputs == ()
    kept.inputs = run.inputs
    assert all(figure.yours == figure.best for figure in LABS[lab].figures(run, kept))
    assert [LABS[lab].label(sent, run.case) for sent in kept.sent] == [
        LABS[lab].label(sent, run.case) for sent in run.sent
    ]


@pytest.mark.parametrize("lab", EACH)
def test_a_lab_begins_with_a_hole_that_says_what_to_write(lab: str) -> None:
    found = judge_here(lab, str(ROOT / "lessons" / f"{lab}.py"))
    assert (found.kind, found.points) == ("hole", 0)
    assert f"of {lab}.py: " in found.verdict
    hole = find_hole(lab, str(ROOT / "lessons" / f"{lab}.py"))
    assert hole.startswith(f"{lab}: still to be written, line ")
    if lab != "lost_updates":  # whose ranks come to holes of their own, one of them first
        assert str(found) == hole


@pytest.mark.parametrize("lab", EACH)
def test_functions_that_do_nothing_get_no_point(lab: str) -> None:
    functions = LABS[lab].functions
    found = judge_changed(lab, *(f"def {name}(*arguments):\n    pass\n" for name in functions))
    assert (found.right, found.points) == (False, 0), found.parts


@pytest.mark.parametrize(("lab", "name"), [*all_mistakes()])
def test_a_mistake_gets_its_line_and_its_points(lab: str, name: str) -> None:
    mistake = MISTAKES[lab][name]
    found = judge_changed(lab, *mistake.changes, name=name)
    assert (found.kind, found.verdict) == (mistake.kind, found.verdict)
    assert mistake.text in found.verdict
    assert ("\n" in found.verdict) == (found.kind == "orders")
    assert not found.passed
    assert found.points == mistake.points, (found.right_functions, found.parts)
    if said := re.search(r"right so far: ([\w, ]+)$", found.verdict):
        assert said[1] == "serve without a bound" or {*said[1].split(", ")} <= {*found.right_functions}


def test_every_lab_has_five_mistakes_at_least_each_with_a_line_of_its_own_and_some_with_points() -> None:
    lines = [(mistake.kind, mistake.text) for mistakes in MISTAKES.values() for mistake in mistakes.values()]
    assert len(set(lines)) == len(lines)
    for mistakes in MISTAKES.values():
        points = [mistake.points for mistake in mistakes.values() if mistake.kind != "costly"]
        assert len(points) >= 5
        assert 0 < max(points) < 60


@pytest.mark.parametrize("lab", EACH)
@settings(max_examples=5)
@given(data=st.data())
def test_one_element_of_a_result_that_is_another_is_found(lab: str, data: st.DataObject) -> None:
    case = next(case for case in (*LABS[lab].cases, LABS[lab].scored) if case.n > 2 and not case.function)
    run = play_solution(lab, case)
    assert not first(LABS[lab].find_faults(run))
    rank = data.draw(st.integers(0, case.n - 1))
    has = run.results[rank]
    name = data.draw(st.sampled_from([name for name in JUDGED[lab] if name in has and has[name].numel()]))
    vector = run.results[rank][name].clone()
    run.results[rank] = run.results[rank] | {name: vector}
    vector.view(-1)[data.draw(st.integers(0, vector.numel() - 1))] += 1
    assert first(LABS[lab].find_faults(run))


JUDGED = {"ring": ["vector"], "param_server": ["x1", "x3"], "lost_updates": ["x", "fetched"], "links": ["vector"],
          "oracle": ["g", "total"], "not_waiting": ["before", "used", "had", "staleness"], "sharding": ["x1", "x2"],
          "compression": ["kept1", "values2", "decoded3", "mean1", "left2"],
          "memory": ["forward1", "backward2"], "logarithms": ["recursive_doubling", "halving_doubling"],
          "seldom": ["outer_step", "stream"],
          "failures": ["before", "used", "had"], "orders": ["x", "had"],
          "bubble": ["gpipeloss", "one_f_one_bgradients"], "columns": ["y", "gradient of x"],
          "experts": ["y", "gradient of scores"], "uneven": ["y", "gradient", "used"]}  # fmt: skip


@pytest.mark.parametrize("lab", LABS)
def test_inputs_are_drawn_anew_for_every_check(lab: str) -> None:
    for case in (LABS[lab].scored, LABS[lab].real):
        inputs = [draw(LABS[lab], case, anew=anew).inputs for anew in (True, True, False, False)]
        for alike, (some, others) in ((False, inputs[:2]), (True, inputs[2:])):
            pairs = [(vector[name], other[name]) for vector, other in zip(some, others, strict=True) for name in vector]
            assert all(torch.equal(vector.nan_to_num(), other.nan_to_num()) for vector, other in pairs) == alike


# Points, and hints of Python's own errors


def test_pushes_of_another_length_are_no_part() -> None:
    found = judge_changed(
        "lost_updates", ("x - base, SERVER", "(x - base)[1:], SERVER"), ("x.add_(pushed)", "x[1:].add_(pushed)")
    )
    assert (found.right, found.points, [*found.parts]) == (False, 20, ["fetch"])


def test_all_that_is_sent_to_one_rank_is_no_ring() -> None:
    found = judge_changed("ring", """def all_reduce(transport, vector):
    from strategies.collectives import naive_all_reduce
    naive_all_reduce(vector, transport)
    vector.div_(transport.world_size)
""")  # fmt: skip
    assert (found.kind, found.points) == ("costly", 40)
    assert "no ring, in which each rank sends to one neighbour: rank 0 sends to 3" in found.verdict


@pytest.mark.parametrize(
    "line", ["vector = vector.view(-1)", "vector = vector.mul_(1)", "vector = torch.add(vector, 0, out=vector)"]
)
def test_what_makes_no_new_tensor_gets_no_hint_of_it(line: str) -> None:
    found = judge_changed("ring", ("vector.div_(N)", line))
    assert found.verdict.endswith("the sum; expected the mean: divide by N, once")


def test_what_never_ends_behind_the_first_mistake_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_COMPUTING_S", 1.0)
    endless = ("    alike = all(", "    while True:\n        pass\n    alike = all(")
    found = check.check_file("oracle", write(tmp_path, "oracle", ("    plan = []\n", "    plan = [[]]\n"), endless))
    assert found.kind == "returned"
    assert "cut returned 0 parts in a step" in found.verdict
