"""Lab 8: its optimizer keeps the state of what it has updated."""

import torch

from lessons.labs.sharding import Optimizer


def test_the_optimizer_keeps_the_state_of_what_it_has_updated() -> None:
    x, g = torch.zeros(10), torch.ones(10)
    optimizer = Optimizer(x, g, rank=0)
    for _ in range(3):
        optimizer.update(x[2:5], torch.ones(3))
    assert optimizer.elements == 3
    optimizer.update(x, g)
    assert optimizer.elements == 13
    optimizer.update(x[2:5].clone(), torch.ones(3))
    assert (optimizer.elements, optimizer.of_copies) == (13, 1)
    assert x[2] < x[0] < 0, "momentum"
