"""Lab 12: other ways that are right, parts that are right so far, the loss that is reached, and training by it."""

from pathlib import Path

import pytest
import torch

from lessons.lab import LATENCY
from lessons.labs import LABS
from lessons.labs.seldom import STEP_S, STEPS
from lessons.seldom import Mine
from lessons.solutions import seldom
from strategies import Strategy, StreamingDiLoCo
from tests.lessons.judged import judge_changed, play_solution
from tests.ranks import virtual_time
from tests.runs import metadata, small
from training import run

SUB = "torch.sub(fragment.x0, fragment.x, out=fragment.sum)"
MEAN = "d = fragment.sum.div_(n)"


def test_the_mean_of_x_may_travel_in_place_of_that_of_the_differences() -> None:
    found = judge_changed(
        "seldom", (SUB, "fragment.sum.copy_(fragment.x)"), (MEAN, "d = fragment.x0 - fragment.sum / n")
    )
    assert found.points == 100


def test_an_operator_that_works_in_place_is_as_good() -> None:
    step, operator = "fragment.x0.sub_(OUTER_LR * (d", "fragment.x0 -= (OUTER_LR * (d"
    assert judge_changed("seldom", (step, operator)).points == 100


def test_a_hole_after_a_right_part_names_the_part() -> None:
    hole = 'def stream(sums, fragment, t):\n    raise NotImplementedError("stream")\n'
    verdict = judge_changed("seldom", hole).verdict
    assert verdict == "still to be written, line 31 of mine.py: stream; right so far: outer_step"


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


def test_training_by_the_function_is_training_by_the_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "stream", staticmethod(seldom.stream))

    def train(strategy: Strategy) -> tuple[object, list[float]]:
        folder = tmp_path / strategy.name
        given = small(folder, strategy, n_gpus=2, batch_size=19)  # in every step as many samples on both ranks
        table = run(given, quiet=True, launcher=virtual_time(2).launcher())
        return metadata(folder)["bytes_sent"], table["test_loss"].dropna().tolist()

    (nbytes, losses), (bytes_of_it, its_losses) = (train(one) for one in (Mine(), StreamingDiLoCo()))
    assert nbytes == bytes_of_it
    assert losses == pytest.approx(its_losses, rel=1e-5)
