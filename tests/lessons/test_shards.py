"""Lab 8: any cut of x over the ranks is right, and its optimizer keeps the state of what it has updated."""

import torch

from lessons.labs.sharding import Optimizer
from tests.lessons.judged import judge_changed


def test_an_uneven_cut_is_right_and_keeps_more_than_its_share() -> None:
    cut = "torch.tensor_split(g, N), torch.tensor_split(x, N)"
    uneven = "ends = [len(x) * (i + 1) // (2 * N) for i in range(N - 1)]\n    g_chunks, x_chunks = "
    found = judge_changed("sharding", (f"g_chunks, x_chunks = {cut}", uneven + cut.replace("N)", "ends)")))
    assert found.right
    assert "numbers, more than its share" in found.verdict


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
