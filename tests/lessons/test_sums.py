"""A sum tells what it is made of."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons.sums import coefficients, describe


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=7), st.integers(0, 5), st.integers(0, 2**30))
def test_the_coefficients_of_a_sum_of_random_vectors_are_found(factors: list[int], more: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    parts = list(torch.randn(len(factors), 3 * len(factors) + more, generator=generator, dtype=torch.float64))
    total = torch.stack([a * part for a, part in zip(factors, parts, strict=True)]).sum(0)
    found = coefficients(total, parts)
    assert found is not None
    assert [round(a, 6) for a in found] == factors


def test_what_is_no_sum_has_no_coefficients() -> None:
    parts = [torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])]
    assert coefficients(torch.tensor([1.0, 1.0, 1.0]), parts) is None
    assert coefficients(torch.tensor([float("nan"), 0.0, 0.0]), parts) is None
    assert coefficients(torch.tensor([1.0]), [torch.tensor([1.0]), torch.tensor([2.0])]) is None, "too short to tell"


def test_a_sum_is_described_as_on_paper() -> None:
    assert describe([1.0, 2.0, 0.0]) == "rank 0 + 2 x rank 1"
    assert describe([1 / 3, 1 / 3, 2 / 3]) == "(rank 0 + rank 1 + 2 x rank 2) / 3"
    assert describe([0.0, 0.5, 0.0]) == "rank 1 / 2"
    assert describe([0.0, 0.5, 1.0], "g of rank", (2, 4, 7)) == "(g of rank 4 + 2 x g of rank 7) / 2"
    assert describe([0.0, 0.0, 0.0]) == "nothing of any of them"
