"""Typical mistakes of lab 3."""

from tests.lessons.mistakes import Mistake

CLOSE = "alike and bool(error <= tolerance * oracle.abs().max())"
GRADIENT = "gradient([sample for part in parts for sample in part])"
RANGE = "range(start + size * k // N, start + size * (k + 1) // N)"

MISTAKES = [
    Mistake("adds_an_empty_step", "wrong", 52, "are used up after s", ("(0, n_samples, B):", "(0, n_samples + 1, B):")),
    Mistake("adds_in_its_own_order", "wrong", 52, "have the same mean but for rounding: ",
            """def average(transport, g, n):
    if n == 0:
        g.zero_()
    sent = [transport.isend(g.mul_(n), peer, "g", n=n) for peer in transport.peers[:1]]
    sent += [transport.isend(g, peer, "g", n=n) for peer in transport.peers[1:]]
    total = g.clone()
    for step in range(1, transport.world_size):
        with transport.recv((transport.rank - step) % transport.world_size, "g") as received:
            total.add_(received.vector)
            n += received.n
    for work in sent:
        work.wait()
    g.copy_(total).div_(n)
    return n
"""),
    Mistake("asks_for_the_same_bits", "wrong", 45, "verify returned False for replicas that are alike, and a rounding",
            (CLOSE, "all(torch.equal(x, oracle) for x in xs)")),
    Mistake("averages_the_parts", "wrong", 52, "each part got the same weight; expected the same weight for each of th",
            (GRADIENT, "torch.stack([gradient(part) for part in parts if part]).mean(0)")),
    Mistake("compares_element_by_element", "wrong", 55,
            "verify returned False for replicas that are alike, and in an element near 0",
            (CLOSE, "alike and bool(((xs[0] - oracle).abs() <= tolerance * oracle.abs()).all())")),
    Mistake("compares_with_the_largest_value", "wrong", 55,
            "verify returned False for replicas that are alike, and a rounding away from an oracle that is "
            "negative in all elements; expected True: the largest element is the largest in size: .abs().max()",
            ("oracle.abs().max()", "oracle.max()")),
    Mistake("divides_by_its_own_n", "wrong", 52, "rank 0 ends with the weighted sum divided by ",
            ("g.div_(total)", "g.div_(max(n, 1))")),
    Mistake("divides_by_ranks", "wrong", 52,
            "rank 0 ends with the weighted sum divided by N = 3; divide by the number of all",
            ("g.div_(total)", "g.div_(transport.world_size)")),
    Mistake("fills_up_parts", "wrong", 52, "is taken 2 times in step 0; each is to count once",
            ("plan = []", "size = -(-B // N)\n    plan = []"),
            ("        size = min(B, n_samples - start)", "        left = min(B, n_samples - start)"),
            (RANGE,
             "[start + (size * k + i) % left for i in range(size)]")),
    Mistake("forgets_the_sign_of_a_distance", "wrong", 55,
            "in one element 100 tolerances more or less than the oracle; expected False: a distance has no sign: take",
            ("oracle).abs().max()", "oracle).max()")),
    Mistake("gives_the_rest_to_the_last", "wrong", 52, "all wait for the largest; sizes are to differ by at most one",
            (RANGE, "range(start + size // N * k, start + (size if k == N - 1 else size // N * (k + 1)))")),
    Mistake("goes_too_far", "wrong", 52, "which is of step 1; the batch of step 0 is samples 0 to ",
            ("min(B, n_samples - start)", "-(-min(B, n_samples - start) // N)"),
            (f"{RANGE} for k in range(N)",
             "range(start + size * k, start + size * (k + 1)) for k in range(N)")),
    Mistake("hides_nan", "wrong", 52, "leave out who has no samples, but let be seen what has gone wrong",
            ("g.mul_(n)", "g.nan_to_num_().mul_(n)")),
    Mistake("leaves_without_samples", "deadlock", 52,
            "has no sample, and sent nothing: the others wait for it all the same",
            ("g.zero_()  # 0 x NaN would be NaN", "g.zero_()  # 0 x NaN would be NaN\n        return 0")),
    Mistake("looks_at_one_replica", "wrong", 55, "verify returned True for replicas that are not alike",
            ("alike and bool(", "bool(")),
    Mistake("looks_at_replicas_only", "wrong", 50,
            "verify returned True for replicas that are alike, and 1 % away from the oracle", (CLOSE, "alike")),
    Mistake("loses_the_last_batch", "wrong", 45, "is lost; it is a smaller batch, but one",
            ("range(0, n_samples, B)", "range(0, n_samples - B + 1, B)")),
    Mistake("loses_what_is_over", "wrong", 52, "is in no part: step 0 has",
            ("(B, n_samples - start)", "(B, n_samples - start) // N"),
            (f"{RANGE} for k in range(N)",
             "range(start + size * k, start + size * (k + 1)) for k in range(N)")),
    Mistake("makes_a_new_g", "wrong", 52, "rank 0's g is as it was; write the mean into g, in place: `g = ...` makes a",
            ("    if n == 0:\n        g.zero_()  # 0 x NaN would be NaN\n", ""),
            ("total = ring_all_reduce(g.mul_(n)",
             "g = g * n if n else torch.zeros_like(g)\n    total = ring_all_reduce(g")),
    Mistake("mean_of_means", "wrong", 52,
            "rank 0 ends with the mean of the 3 ranks' means: a sample counts more where there are",
            ("g.mul_(n)", "g"), ("g.div_(total)", "g.div_(transport.world_size)")),
    Mistake("multiplies_nan", "wrong", 52, "the mean of no samples is NaN, and 0 x NaN is NaN too",
            ("    if n == 0:\n        g.zero_()  # 0 x NaN would be NaN\n", "")),
    Mistake("returns_its_own_n", "wrong", 52, "on rank 0; expected the sum of all n, ", ("return total", "return n")),
    Mistake("sums_in_half_precision", "wrong", 52, "rank 0 sent float16, and rank 0 ends with a mean that has lost dig",
            ("total = ring_all_reduce(g.mul_(n), transport, n)\n    g.div_(total)",
             "half = g.mul_(n).half()\n    total = ring_all_reduce(half, transport, n)\n"
            "    g.copy_(half).div_(total)")),
    Mistake("takes_gradients_first", "wrong", 52, "one_process, step 1: the gradient was taken at the first x",
            """def one_process(plan, gradient, update):
    for g in [gradient([sample for part in parts for sample in part]) for parts in plan]:
        update(g)
"""),
    Mistake("updates_for_each_part", "wrong", 45,
            "one for each part; the samples of a step make one gradient, and one update",
            (f"update({GRADIENT})", "for part in filter(None, parts):\n            update(gradient(part))")),
    Mistake("weights_twice", "wrong", 52, "rank 0 ends with means that were weighted twice: n stands in them squared",
            ("total = ring_all_reduce(g.mul_(n), transport, n)\n    g.div_(total)",
             "g.mul_(n)\n    total = ring_all_reduce(torch.zeros(1), transport, n)\n    g.mul_(n / total)\n"
            "    ring_all_reduce(g, transport)")),
    Mistake("returns_nothing", "returned", 45, "average returned nothing; write the mean into g, in place",
            ("return total", "return None")),
    Mistake("leaves_a_rank_out", "returned", 45, "parts in a step, for N = ",
            ("for k in range(N)]", "for k in range(N - 1)]")),
    Mistake("returns_vectors", "returned", 45, "verify returned a tensor [2, 48]",
            ("return alike and bool(", "return torch.stack([xs[0], oracle]) if alike else bool(")),
    Mistake("asks_for_parts", "gradient", 45, "gradient was given a list of parts; expected a list of samples",
            (GRADIENT, "gradient(parts)")),
    Mistake("takes_one_part", "wrong", 52, "the gradient is that of sam", (GRADIENT, "gradient(parts[0] or parts[1])")),
    Mistake("forgets_to_divide", "wrong", 52, "the weighted sum, not divided; divide by the number of all samples",
            ("    g.div_(total)\n", "")),
    Mistake("divides_by_no_samples", "raised", 52, "raised ZeroDivisionError: ",
            ("g.zero_()  # 0 x NaN would be NaN", "g.div_(n - n + 0.0).mul_(1 // n)")),
    Mistake("still_without_verify", "hole", 45, "verify; right so far: cut, one_process, average",
            ("    alike = all(", "    raise NotImplementedError('verify')\n    alike = all(")),
    Mistake("sends_n_apart", "costly", 70, "sends a number in a message of its own; n can travel beside the vector",
            ("total = ring_all_reduce(g.mul_(n), transport, n)", """ring_all_reduce(g.mul_(n), transport)
    counted = torch.tensor([float(n)])
    ring_all_reduce(counted, transport)
    total = int(counted)""")),
]  # fmt: skip
