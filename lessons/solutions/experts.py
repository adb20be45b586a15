"""Lab 16, solved: a layer of experts as in Switch Transformers, one expert a rank."""

import torch
import torch.distributed as dist

from lessons.passes import Expert, across


def route(scores: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each token the number of its expert, that of its largest score, and its gate."""
    gate, numbers = scores.softmax(1).max(1)
    chosen = torch.nn.functional.one_hot(numbers, scores.shape[1])
    place = (chosen.cumsum(0) * chosen).sum(1)  # from 1, among the tokens of its expert
    return numbers.where(place <= capacity, -1), gate


def count(numbers: torch.Tensor, N: int) -> tuple[list[int], list[int]]:
    """Return how many rows this rank gives to each of the N ranks, and how many it takes from each."""
    give = torch.bincount(numbers[numbers >= 0], minlength=N)
    take = torch.empty_like(give)
    dist.all_to_all_single(take, give)
    return give.tolist(), take.tolist()


def exchange(rows: torch.Tensor, give: list[int], take: list[int]) -> torch.Tensor:
    """Send the first give[0] rows to rank 0, the next give[1] to rank 1, ...; return what comes, by rank."""
    came = rows.new_empty(sum(take), *rows.shape[1:])
    dist.all_to_all_single(came, rows, take, give)
    return came


def moe(x: torch.Tensor, scores: torch.Tensor, expert: Expert, capacity: int) -> torch.Tensor:
    """Return for each token of x [tokens, d] its gate times what its expert makes of it; 0 if it is dropped."""
    numbers, gate = route(scores, capacity)
    give, take = count(numbers, dist.get_world_size())
    order = numbers.argsort(stable=True)[(numbers < 0).sum() :]  # without those that are dropped, which come first
    made = expert(across(x[order], exchange, give, take))
    back = across(made, exchange, take, give)
    return torch.zeros_like(x).index_copy(0, order, gate[order, None] * back)
