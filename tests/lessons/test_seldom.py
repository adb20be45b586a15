"""Lab 12: parts that are right so far, and the loss that is reached."""

import pytest
import torch

from lessons.lab import LATENCY
from lessons.labs import LABS
from lessons.labs.seldom import STEP_S, STEPS
from tests.lessons.judged import play_solution


def test_the_loss_is_reached_at_the_last_step_and_the_sums_travel_while_ranks_compute() -> None:
    case = LABS["seldom"].scored
    found = play_solution("seldom", case)
    least = torch.stack([inputs["c"] for inputs in found.inputs]).mean(0)
    first = float((found.inputs[0]["x"] - least).square().sum())
    for name in STEPS:
        mean = torch.stack([result[name][-2:, 0] for result in found.results]).mean(0)
        before, after = (mean - least).square().sum(1) / first
        assert after <= 1e-3 < before
    rounds, nbytes = STEPS["outer_step"] // 8, 1.5 * case.length * 4
    assert found.seconds == pytest.approx(
        sum(STEPS.values()) * STEP_S + rounds * (6 * LATENCY + nbytes / 125e6), rel=1e-3
    )
