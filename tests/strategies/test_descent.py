"""The updates of one rank: bound, schedule, counts, state; also on a part of x."""

from functools import partial

import pytest
import torch

from records.recorder import Recorder
from strategies.common.descent import Descent, OptimizerFactory, Schedule

SGD = partial(torch.optim.SGD, lr=1.0)
N = 6


def make(
    optimizer: OptimizerFactory = SGD, clip_norm: float = 0.0, schedule: Schedule | None = None
) -> tuple[torch.Tensor, Descent]:
    x = torch.zeros(N, dtype=torch.float64)
    return x, Descent([x], optimizer, clip_norm, schedule, Recorder())


def g(*values: float) -> torch.Tensor:
    return torch.tensor([*values, *[0.0] * (N - len(values))], dtype=torch.float64)


@pytest.mark.parametrize(("gradient", "expected"), [((3, 4), (0.6, 0.8)), ((0.3, 0.4), (0.3, 0.4)), ((0,), (0,))])
def test_the_gradients_norm_is_bounded(gradient: tuple[float, ...], expected: tuple[float, ...]) -> None:
    x, descent = make(clip_norm=1.0)
    descent.step(g(*gradient), 1)
    assert (-x).tolist() == pytest.approx(g(*expected).tolist(), rel=1e-5)


def test_the_schedule_is_asked_for_the_middle_of_the_samples_of_an_update() -> None:
    asked: list[float] = []

    def schedule(processed: float) -> float:
        asked.append(processed)
        return 0.5

    x, descent = make(schedule=schedule)
    descent.step(g(1), 10)
    descent.step(g(1), 20, processed=60)
    descent.step(g(1), 10)
    assert asked == [5, 40, 75]
    assert x[0] == -1.5, "each at half of the learning rate, not at half of the one before"


def test_a_part_of_x_is_updated_by_an_optimizer_of_its_own() -> None:
    x, descent = make(partial(torch.optim.Adam, lr=0.1))
    descent.optimize(x, part=slice(2, 4))
    descent.step(torch.ones(2, dtype=torch.float64), 1)
    assert (x != 0).tolist() == [False, False, True, True, False, False]
    # two moments of two elements, and the count of steps
    assert 2 * 2 * 8 <= descent.state_bytes <= 2 * 2 * 8 + 8
