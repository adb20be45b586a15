"""Lab 3: the plan of any epoch, and the picture of how far ranks drift."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons.drift import Drift, compare, measure
from lessons.lab import first
from lessons.labs import LABS
from lessons.labs.oracle_words import explain_cut
from lessons.report import Report, Shown
from lessons.solutions import oracle
from lessons.training import NOT_TRAINED
from tests.lessons.mistakes import defined, mistakes_of, solution

LAB = LABS["oracle"]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 7))
def test_the_solution_cuts_any_epoch(n_samples: int, B: int, N: int) -> None:
    plan = oracle.cut(n_samples, B, N)
    parts = torch.tensor([len(part) for step in plan for part in step])
    samples = torch.tensor([sample for step in plan for part in step for sample in part])
    assert not [*explain_cut(n_samples, B, N, parts, samples)]
    assert first(explain_cut(n_samples, B, N, parts, torch.cat([samples[1:], samples[:1] + n_samples])))


# On the digits


PLAN = oracle.cut(100, 37, 4)


def distances(average: object, dtype: torch.dtype) -> Drift:
    return measure(PLAN, oracle.one_process, average, oracle.verify, dtype)  # type: ignore[arg-type]


def test_rounding_and_a_wrong_mean_are_far_apart() -> None:
    assert max(distances(oracle.average, torch.float32).distances) < 1e-5
    assert max(distances(oracle.average, torch.float64).distances) < 1e-13
    changes = mistakes_of("oracle")["mean_of_means"].changes
    wrong = distances(defined(solution("oracle", *changes)).average, torch.float32)
    assert min(wrong.distances) > 1e-4
    assert not any(wrong.verified)
    assert "not verified, from step 1 on" in str(wrong)


def test_the_comparison_is_text_and_a_picture() -> None:
    right = Report(LAB, "right", "right")
    found = compare(right, PLAN, oracle.one_process, oracle.verify, {"yours": oracle.average})
    assert isinstance(found, Shown)
    assert "yours, float64" in str(found)
    assert str(found).count("verified, all 15 steps") == 2
    assert 'src="data:image/png;base64,' in found._repr_html_()
    hole = Report(LAB, "hole", "still to be written")
    assert compare(hole, PLAN, oracle.one_process, oracle.verify, {}) == NOT_TRAINED
