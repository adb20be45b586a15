"""Lab 13: what a death costs, and what is told of what is wrong."""

import pytest
import torch

from lessons.failures import Training
from lessons.labs.failures import STATE, goodput
from lessons.solutions import failures


@pytest.mark.parametrize("lost", ["", *STATE])
def test_a_training_ends_with_the_same_bits_only_if_all_of_its_state_was_saved(lost: str) -> None:
    samples = torch.randn(8, 24, generator=torch.Generator().manual_seed(0))
    alone, dying, new = (Training(torch.zeros(24), samples, seed=1) for _ in range(3))
    for training, steps in ((alone, 20), (dying, 11)):
        for _ in range(steps):
            training.step()
    saved = failures.save(dying)
    saved.pop(lost, None)
    vars(new).update(saved)
    for _ in range(9):
        new.step()
    assert torch.equal(new.x, alone.x) == (not lost)


def test_what_follows_the_last_save_is_lost() -> None:
    lasted = 50 * torch.empty(100_000).exponential_(generator=torch.Generator().manual_seed(0))
    counted = float((lasted // (8 + 2)).sum() * 8 / lasted.sum())
    assert goodput(8.0, 2.0, 50.0) == pytest.approx(counted, rel=1e-2)
