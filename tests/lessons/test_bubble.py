"""Lab 14: other orders that are right, the closed forms, and what is printed and drawn."""

import pytest

from gradwire.core.records.formulas import evaluate
from lessons import schedules
from lessons.labs import LABS
from lessons.lanes import draw_lanes
from tests.lessons.judged import judge_changed, play_solution

OTHER_STEP = """def step(order, pipe):
    p, last = pipe.p, pipe.p * pipe.v - 1
    tag = lambda kind, i, stage: (i * (last + 1) + stage) * 2 + (kind == "F")
    needs = {}
    for kind, i, chunk in order:
        stage, way = chunk * p + pipe.rank, 1 if kind == "F" else -1
        if stage != (0 if kind == "F" else last):
            value = pipe.new()
            needs[kind, i, chunk] = value, dist.irecv(value, (pipe.rank - way) % p, tag=tag(kind, i, stage))
    sent = []
    for kind, i, chunk in order:
        stage, way = chunk * p + pipe.rank, 1 if kind == "F" else -1
        value, work = needs.pop((kind, i, chunk), (None, None))
        if work:
            work.wait()
        result = (pipe.forward if kind == "F" else pipe.backward)(i, chunk, value)
        if stage != (last if kind == "F" else 0):
            sent.append(dist.isend(result, (pipe.rank + way) % p, tag=tag(kind, i, stage + way)))
    for work in sent:
        work.wait()
"""


def test_receives_that_are_asked_for_first_and_another_gpipe_are_as_good() -> None:
    backwards = ('return [Pass(kind, i) for kind in "FB" for i in range(m)]',
                 'return [Pass("F", i) for i in range(m)] + [Pass("B", i) for i in reversed(range(m))]')  # fmt: skip
    assert judge_changed("bubble", OTHER_STEP, backwards).points == 100


def test_an_interleaved_order_that_keeps_less_is_as_good() -> None:
    found = judge_changed("bubble", ("2 * (p - rank - 1) + (v - 1) * p", "p - rank - 1 + (v - 1) * p"))
    assert found.points == 100
    assert {figure.name: figure.yours for figure in found.figures}["activations kept, interleaved"] == 4


def test_the_closed_forms_are_those_of_the_papers() -> None:
    m, p, v = 8, 4, 2
    found = {figure.name: figure.best for figure in judge_changed("bubble").figures}
    for name, formula in {"gpipe": m + p - 1, "one_f_one_b": m + p - 1, "interleaved": (m * v + p - 1) / v}.items():
        assert found[f"seconds, {name}"] == pytest.approx(formula, rel=1e-3)
    assert [found[f"activations kept, {name}"] for name in ("gpipe", "one_f_one_b", "interleaved")] == [m, p, 5.5]


@pytest.mark.parametrize("name", ["GPipe", "InterleavedZeroBubble", "DualPipeV"])
def test_a_schedule_of_torch_takes_its_closed_form(name: str) -> None:
    closed_form = pytest.approx(schedules.closed_form(name, 2, 4), rel=1e-6)
    assert schedules.measure(name, 2, 4) == closed_form
    assert evaluate(schedules.formula(name), {"p": 2, "m": 4, "c": 1}) == closed_form


def test_the_picture_has_a_lane_for_each_rank_and_a_bar_for_each_pass() -> None:
    run = play_solution("bubble", LABS["bubble"].scored)
    picture = draw_lanes(run, run)
    for axes in picture.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(4)]
        assert len(axes.patches) == 4 * 2 * (8 + 8 + 16)


def test_what_a_rank_prints_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    judge_changed("bubble", ("    sent: list[Any] = []\n", '    sent: list[Any] = []\n    print("here I am")\n'))
    assert "here I am" in capsys.readouterr().out
