"""Lab 16: another way that is right, and what its costs are by count."""

import torch

from lessons.labs import LABS
from lessons.labs.experts import CAPACITY, TOKENS, choose
from tests.lessons.judged import judge_changed, play_solution

LISTS = """def route(scores, capacity):
    gates, numbers, taken = [], [], [0] * scores.shape[1]
    for row in scores:
        k = int(row.argmax())
        taken[k] += 1
        numbers.append(k if taken[k] <= capacity else -1)
        gates.append(row.softmax(0)[k])
    return torch.tensor(numbers), torch.stack(gates)
"""


def test_a_loop_over_tokens_is_as_good() -> None:
    assert judge_changed("experts", LISTS).points == 100


def test_the_bytes_are_the_rows_for_others_four_times_and_the_counts() -> None:
    case = LABS["experts"].scored
    run = play_solution("experts", case)
    numbers = [choose(values["scores"].view(TOKENS, -1), CAPACITY) for values in run.inputs]
    rows = torch.tensor([[int((of == k).sum()) for k in range(case.n)] for of in numbers])
    rows.fill_diagonal_(0)  # which do not travel
    there, back = rows.sum(1), rows.sum(0)
    assert list(run.nbytes) == [
        2 * 4 * case.length * int(n) + 8 * (case.n - 1) for n in there + back
    ]  # each in both passes
