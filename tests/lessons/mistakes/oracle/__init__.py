"""Typical mistakes of lab 3: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "adds_an_empty_step": ("wrong", "are used up after step "),
    "adds_in_its_own_order": ("wrong", "have the same mean but for rounding: "),
    "asks_for_the_same_bits": ("wrong", "verify returned False for replicas that are alike, and a rounding away"),
    "averages_the_parts": ("wrong", "each part got the same weight; expected the same weight for each of the "),
    "compares_element_by_element": (
        "wrong",
        "verify returned False for replicas that are alike, and in an element near 0",
    ),
    "compares_with_the_largest_value": (
        "wrong",
        "verify returned False for replicas that are alike, and a rounding away from an oracle that is negative in all "
        "elements; expected True: the largest element is the largest in size: .abs().max()",
    ),
    "divides_by_its_own_n": ("wrong", "rank 0 ends with the weighted sum divided by "),
    "divides_by_ranks": ("wrong", "rank 0 ends with the weighted sum divided by N = 3; divide by the number of all"),
    "fills_up_parts": ("wrong", "is taken 2 times in step 0; each is to count once"),
    "forgets_the_sign_of_a_distance": (
        "wrong",
        "in one element 100 tolerances more or less than the oracle; expected False: a distance has no sign: take",
    ),
    "gives_the_rest_to_the_last": ("wrong", "all wait for the largest; sizes are to differ by at most one"),
    "goes_too_far": ("wrong", "which is of step 1; the batch of step 0 is samples 0 to "),
    "hides_nan": ("wrong", "leave out who has no samples, but let be seen what has gone wrong"),
    "leaves_without_samples": ("deadlock", "has no sample, and sent nothing: the others wait for it all the same"),
    "looks_at_one_replica": ("wrong", "verify returned True for replicas that are not alike"),
    "looks_at_replicas_only": (
        "wrong",
        "verify returned True for replicas that are alike, and 1 % away from the oracle",
    ),
    "loses_the_last_batch": ("wrong", "is lost; it is a smaller batch, but one"),
    "loses_what_is_over": ("wrong", "is in no part: step 0 has"),
    "makes_a_new_g": ("wrong", "rank 0's g is as it was; write the mean into g, in place: `g = ...` makes a new"),
    "mean_of_means": ("wrong", "rank 0 ends with the mean of the 3 ranks' means: a sample counts more where there are"),
    "multiplies_nan": ("wrong", "the mean of no samples is NaN, and 0 x NaN is NaN too"),
    "returns_its_own_n": ("wrong", "on rank 0; expected the sum of all n, "),
    "sums_in_half_precision": ("wrong", "rank 0 sent float16, and rank 0 ends with a mean that has lost digits"),
    "takes_gradients_first": ("wrong", "one_process, step 1: the gradient was taken at the first x"),
    "updates_for_each_part": ("wrong", "one for each part; the samples of a step make one gradient, and one update"),
    "weights_twice": ("wrong", "rank 0 ends with means that were weighted twice: n stands in them squared"),
}
