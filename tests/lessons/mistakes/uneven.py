"""Typical mistakes of lab 17."""

from tests.lessons.mistakes import Mistake

SUMS = "    dist.all_reduce(sums)\n    mean, square"
BACK = "    dist.all_reduce(sums)\n    return (gradient"
RETURNS = "return (gradient - sums[0] / n - y * sums[1] / n) / deviation"
MOST = "    dist.all_reduce(steps, dist.ReduceOp.MAX)\n"
UPDATE = "update(total[:-1] / total[-1])"
GIVES = "total[:-1], total[-1] = n * compute(batches[step]), n"

MISTAKES = [
    Mistake("adds_up_twice", "costly", 80,
            "all-reduce once a pass and once a step; collectives: 8; the best known needs 7, 1 + 1 +",
            (BACK,
             "    for row in sums:\n        dist.all_reduce(row)\n    return (gradient")),
    Mistake("divides_by_its_own_samples", "wrong", 40,
            "differentiate, N = 2, 3 elements, float64: rank 0: gradient is something else than that of one",
            (RETURNS, RETURNS.replace("/ n", "/ max(len(gradient), 1)"))),
    Mistake("divides_by_n_minus_1", "wrong", 20,
            "y is divided by the unbiased deviation; divide the variance by n, not by n - 1",
            ("(square - mean.square() + EPS)", "((square - mean.square()) * n / (n - 1) + EPS)")),
    Mistake("divides_by_the_ranks", "wrong", 50,
            "what update was given is divided by N, though some ranks have no batch: add up how many",
            (GIVES, "total[:-1], total[-1] = compute(batches[step]), 1"),
            (UPDATE, "update(total[:-1] / dist.get_world_size())")),
    Mistake("forgets_that_the_mean_depends_on_x", "wrong", 40,
            "gradient is g / sqrt(variance + EPS) alone: mean and variance depend on x, too",
            (RETURNS, "return gradient / deviation")),
    Mistake("forgets_to_divide", "wrong", 50,
            "rank 0: what update was given is the sum over the samples; expected the mean",
            (UPDATE, "update(total[:-1])")),
    Mistake("leaves_the_loop_early", "deadlock", 40,
            "for rank 1; ended: rank 1; a rank whose batches are used up must take part until no rank has",
            ("        if step < len(batches):\n",
             "        if step >= len(batches):\n            break\n        if step < len(batches):\n")),
    Mistake("means_of_means", "wrong", 50,
            "what update was given is the mean of the ranks' means; ranks with more samples count more",
            (GIVES, "total[:-1], total[-1] = compute(batches[step]), 1")),
    Mistake("normalizes_alone", "wrong", 20,
            "normalize, N = 2, 3 elements: rank 0: y is normalized by this rank's samples alone",
            (SUMS, "    mean, square")),
    Mistake("returns_y_alone", "returned", 20,
            "rank 1: normalize returned a tensor [3, 3] of float32; expected y, and what is kept",
            ("return y, (y, deviation, n)", "return y")),
    Mistake("takes_its_own_number_of_steps", "deadlock", 40,
            "rank 0 waits in all_reduce of (4,) float32, SUM at line 42 of takes_its_own_number_of_steps",
            (MOST, "")),
    Mistake("takes_its_own_sums_back", "wrong", 40,
            "gradient is made with the sums over this rank's samples; add up over the ranks",
            (BACK, "    return (gradient")),
    Mistake("takes_the_least_number_of_steps", "wrong", 50,
            "rank 0: train made 1 updates; expected 2, as many as the rank with most batches has",
            ("dist.ReduceOp.MAX", "dist.ReduceOp.MIN")),
    Mistake("updates_where_it_has_a_batch", "wrong", 50,
            "rank 1: train made 1 updates; expected 2, as many as the rank with most batches has",
            (UPDATE, "if step < len(batches):\n            " + UPDATE)),
]  # fmt: skip
