"""Typical mistakes of lab 16."""

from tests.lessons.mistakes import Mistake

GATE = "gate, numbers = scores.softmax(1).max(1)"
KEEPS = "return numbers.where(place <= capacity, -1), gate"
PLACE = "place = (chosen.cumsum(0) * chosen).sum(1)"
GIVE = "give = torch.bincount(numbers[numbers >= 0], minlength=N)"
TAKE = "    dist.all_to_all_single(take, give)\n"
EXCHANGE = "dist.all_to_all_single(came, rows, take, give)"
THERE = "made = expert(across(x[order], exchange, give, take))"
BACK = "back = across(made, exchange, take, give)"
RETURNS = "return torch.zeros_like(x).index_copy(0, order, gate[order, None] * back)"

MISTAKES = [
    Mistake("asks_for_the_smallest_score", "wrong", 37,
            "numbers, 6 tokens, 3 experts, capacity 2, is those of the smallest scores",
            (GATE, "gate, numbers = scores.softmax(1).max(1)\n    numbers = scores.argmin(1)")),
    Mistake("changes_the_sides", "wrong", 30,
            "count, N = 3, 3 elements: rank 0: give is what it takes; give comes first",
            ("    return give.tolist(), take.tolist()", "    return take.tolist(), give.tolist()")),
    Mistake("counts_the_dropped_for_the_last_rank", "wrong", 30,
            "rank 0: give is with the tokens that are dropped, which go to no rank",
            (GIVE, "give = torch.bincount(numbers % N, minlength=N)")),
    Mistake("drops_nothing", "wrong", 37,
            "capacity 2, is of an expert with more than its capacity: drop the tokens behind the",
            (KEEPS, "return numbers, gate")),
    Mistake("drops_one_too_many", "wrong", 37,
            "capacity 2, is such that an expert has less than its capacity",
            (KEEPS, "return numbers.where(place < capacity, -1), gate")),
    Mistake("drops_the_first", "wrong", 37,
            "capacity 2, is such that the first tokens are dropped; an expert keeps the first",
            (PLACE, "place = (chosen.flip(0).cumsum(0).flip(0) * chosen).sum(1)")),
    Mistake("exchanges_without_autograd", "wrong", 52,
            "moe, N = 2, 3 elements: rank 0: gradient of x is missing: nothing that has a gradient",
            (THERE, "made = expert(exchange(x[order].detach(), give, take))"),
             (BACK, "back = exchange(made.detach(), take, give)")),
    Mistake("forgets_the_gate", "wrong", 45,
            "moe, N = 2, 3 elements: rank 0: y is not multiplied by the gates",
            (RETURNS, RETURNS.replace("gate[order, None] * ", ""))),
    Mistake("forgets_the_order", "wrong", 45,
            "y is in the order in which tokens come back, by expert: put each where its token stood",
            (RETURNS, "return torch.cat([gate[order, None] * back, torch.zeros_like(x[len(order) :])])")),
    Mistake("forgets_to_sort", "wrong", 45,
            "moe, N = 2, 3 elements: rank 0: y is something else than that of one process",
            ("order = numbers.argsort(stable=True)[(numbers < 0).sum() :]",
             "order = (numbers >= 0).nonzero()[:, 0]")),
    Mistake("forgets_the_experts", "wrong", 45, "rank 0: y is made without the experts",
            (THERE, "made = across(x[order], exchange, give, take)")),
    Mistake("gates_before_the_expert", "wrong", 45,
            "rank 0: y is made of x times the gates; expected the expert's result times them",
            (THERE, THERE.replace("x[order]", "(gate[:, None] * x)[order]")),
            (RETURNS, RETURNS.replace("gate[order, None] * ", ""))),
    Mistake("gates_by_sigmoid", "wrong", 37, "is the sigmoid of the score; expected its probability among the experts",
            (GATE, "gate, numbers = scores.sigmoid().max(1)")),
    Mistake("gates_by_scores", "wrong", 37,
            "gate, 6 tokens, 3 experts, capacity 2, is the largest score; expected its probability, softmax",
            (GATE, "gate, numbers = scores.max(1)")),
    Mistake("gates_over_tokens", "wrong", 37,
            "capacity 2, is a softmax over the tokens; expected one over the experts",
            (GATE, "numbers = scores.argmax(1)\n    gate = scores.softmax(0).gather(1, numbers[:, None])[:, 0]")),
    Mistake("gives_all_the_same", "raised", 30,
            "got split_sizes=[1, 1, 1], line 28 of gives_all_the_same.py (dist.all_to_all_single(came, r",
            (EXCHANGE, "dist.all_to_all_single(came, rows)")),
    Mistake("gives_all_to_its_own_expert", "wrong", 45, "rank 0: y is made by this rank's expert for all tokens",
            (RETURNS, "return torch.where((numbers >= 0)[:, None], gate[:, None] * expert(x), 0)")),
    Mistake("numbers_the_dropped_by_the_experts", "wrong", 37,
            "the number of dropped tokens is that of the experts; expected -1",
            (KEEPS, KEEPS.replace("-1", "scores.shape[1]"))),
    Mistake("keeps_what_is_dropped", "wrong", 45,
            "moe, N = 2, 3 elements: rank 0: y is x for tokens that are dropped; expected 0",
            (RETURNS, RETURNS.replace("torch.zeros_like(x)", "x"))),
    Mistake("pads_to_the_capacity", "costly", 60,
            "collectives: 9; the best known needs 5, 1 + 2 + 2",
            ("    came = rows.new_empty(sum(take), *rows.shape[1:])\n    " + EXCHANGE + "\n    return came",
             """    N, most = len(give), torch.tensor(max(give + take))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    padded = rows.new_zeros(N, int(most), *rows.shape[1:])
    for k, part in enumerate(rows.split(give)):
        padded[k, : len(part)] = part
    came = torch.empty_like(padded)
    dist.all_to_all_single(came, padded)
    return torch.cat([part[:n] for part, n in zip(came, take)])""")),
    Mistake("puts_the_last_rank_first", "wrong", 37, "rank 0: rows is something else than that of one process",
            ("    return came\n", "    return torch.cat(came.split(take)[::-1])\n")),
    Mistake("returns_one_number", "returned", 30,
            "route: rank 0: route returned a tensor [6] of int64; expected two, each a Tensor",
            (KEEPS, "return numbers.where(place <= capacity, -1)")),
    Mistake("sends_back_as_it_came", "raised", 52,
            "line 28 of sends_back_as_it_came.py (dist.all_to_all_single(came, rows, take, give)); all_to_a",
            (BACK, "back = across(made, exchange, give, take)")),
    Mistake("swaps_the_splits", "raised", 30,
            "all_to_all_single(output, input, rows of the output, rows of the input): the output comes",
            (EXCHANGE, "dist.all_to_all_single(came, rows, give, take)")),
    Mistake("takes_what_it_gives", "wrong", 37,
            "rank 0: take is what this rank gives: what it takes only the others know",
            ("    take = torch.empty_like(give)\n" + TAKE, "    take = give\n")),
]  # fmt: skip
