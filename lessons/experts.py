"""Lab 16, to be filled in: experts on other ranks, and tokens on their way. The text is in 16_experts.ipynb.

python -m lessons.check experts lessons/experts.py
"""

import torch
import torch.distributed as dist  # noqa: F401 - for the functions below

from lessons.passes import Expert, across  # noqa: F401


def route(scores: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each token the number of its expert, that of its largest score, and its gate.

    `scores` [tokens, experts]. The gate is the probability of that expert, by softmax. Of the tokens of this rank an
    expert takes the first `capacity`; the number of a token that is dropped is -1.
    """
    raise NotImplementedError(
        "route: which expert has each token's largest score? The how manieth of that expert's tokens is it? And from "
        "which numbers is the gate, so that the scores get a gradient?"
    )


def count(numbers: torch.Tensor, N: int) -> tuple[list[int], list[int]]:
    """Return how many rows this rank gives to each of the N ranks, and how many it takes from each.

    `numbers` [tokens] are what `route` returns; rank k has expert k.
    """
    raise NotImplementedError("count: what a rank gives it can count. Who knows what it takes? dist.all_to_all_single")


def exchange(rows: torch.Tensor, give: list[int], take: list[int]) -> torch.Tensor:
    """Send the first give[0] rows to rank 0, the next give[1] to rank 1, ...; return what comes, by rank.

    take[k] rows come from rank k. `rows` is not changed.
    """
    raise NotImplementedError("exchange: how many rows come in all? One all-to-all carries them, if it knows the sizes")


def moe(x: torch.Tensor, scores: torch.Tensor, expert: Expert, capacity: int) -> torch.Tensor:
    """Return for each token of x [tokens, d] its gate times what its expert makes of it; 0 if it is dropped.

    `expert(rows)` is the expert of this rank.
    """
    raise NotImplementedError(
        "moe: in which order must rows leave, which order do they come back in, and where did each stand? `across` "
        "carries them and their gradients"
    )
