"""Typical mistakes of lab 15."""

from tests.lessons.mistakes import Mistake

F, G = "return between(x, _same, _sum)", "return between(x, _sum, _same)"
MLP = "return g(torch.nn.functional.gelu(f(x) @ part.A) @ part.B)"
ATTENTION = "return g(attend(x @ part.Q, x @ part.K, x @ part.V, heads) @ part.O)"
CUT = "for matrix in (block.Q, block.K, block.V, block.A))"
TARGET = "of_target = torch.where(mine, z.gather(1, places.where(mine, 0)[:, None])[:, 0], 0)"
SUMS = "total, of_target = g(torch.stack([z.exp().sum(1), of_target]))"
LARGEST = "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"

MISTAKES = [
    Mistake("adds_gradients_that_are_equal", "wrong", 25,
            "gradient of x is N times too large: all ranks have the same, and it was added up",
            (G, "return between(x, _sum, _sum)")),
    Mistake("adds_in_place", "damage", 50,
            "g: x was changed in place; all_reduce works in place: give it a clone",
            ("    total = x.clone()\n", "    total = x\n")),
    Mistake("adds_what_is_equal", "wrong", 35,
            "rank 0: y is N times too large: all ranks have the same, and it was added up",
            (F, "return between(x, _sum, _sum)")),
    Mistake("adds_x", "wrong", 50, "mlp, N = 2, 32 elements: rank 0: y is with x added, which the block does itself",
            (MLP, MLP.replace("return g", "return x + g"))),
    Mistake("attends_with_one_head", "wrong", 50, "rank 0: y is of fewer heads: the part has `heads` of them",
            (ATTENTION, ATTENTION.replace("heads)", "1)"))),
    Mistake("cuts_all_by_columns", "wrong", 55,
            "rank 0: O of rank 0 of 2 is wrong: a rank has rows of O, in the order of the ranks",
            ("(matrix.chunk(N)[rank].contiguous()",
             "(matrix.chunk(N, 1)[rank].contiguous()")),
    Mistake("cuts_all_by_rows", "wrong", 55,
            "rank 0: Q of rank 0 of 2 is wrong: a rank has columns of Q, in the order of the ranks",
            ("(matrix.chunk(N, 1)[rank].contiguous()",
             "(matrix.chunk(N)[rank].contiguous()")),
    Mistake("cuts_views", "returned", 50,
            "cut returned Q as a view, which keeps the whole: .contiguous()",
            ("(matrix.chunk(N, 1)[rank].contiguous()",
             "(matrix.chunk(N, 1)[rank]")),
    Mistake("divides_the_sum", "wrong", 15,
            "f, N = 3, 12 elements: rank 0: gradient of x is the mean over ranks; expected the sum",
            ("    return total\n", "    return total / dist.get_world_size()\n")),
    Mistake("forgets_f", "wrong", 55,
            "mlp, N = 2, 32 elements: rank 0: gradient of x is this rank's alone: f is missing",
            (MLP, MLP.replace("f(x)", "x"))),
    Mistake("forgets_g", "wrong", 55,
            "rank 0: y is this rank's term of the sum alone: g is missing",
            (ATTENTION, ATTENTION.replace("g(attend", "(attend"))),
    Mistake("forgets_gelu", "wrong", 50, "mlp, N = 2, 32 elements: rank 0: y is x A B: gelu is missing",
            (MLP, "return g(f(x) @ part.A @ part.B)")),
    Mistake("forgets_the_largest_logit_of_the_target", "wrong", 55,
            "loss is too small by the largest logit: subtract it from that of the target, too",
            ("torch.where(mine, z.gather", "torch.where(mine, logits.gather")),
    Mistake("forgets_the_largest_logit", "wrong", 50,
            "rank 0: loss is not finite: subtract the largest logit, that of all ranks, before",
            ("z = logits - largest[:, None]", "z = logits")),
    Mistake("forgets_the_sums", "wrong", 50,
            "rank 0: loss is that of this rank's words alone",
            (SUMS, "total = z.exp().sum(1)")),
    Mistake("turns_the_sign", "wrong", 50, "loss is less than 0: it is log(sum of exp(z)) - z of the target",
            ("(total.log() - of_target)", "(of_target - total.log())")),
    Mistake("takes_a_softmax_on_each_rank", "wrong", 50,
            "loss is made with a softmax over each rank's own words: add up the sums of exp(z)",
            ("of_target = torch.where(mine, z.gather", "of_target = torch.where(mine, logits.log_softmax(1).gather"),
            ("(total.log() - of_target)", "(0 * total - of_target)")),
    Mistake("gathers_the_logits", "costly", 90,
            "all_gather brings whole matrices to all ranks; a sum over ranks is enough; bytes of a",
            """def loss(logits, targets, first):
    N, widths = dist.get_world_size(), []
    width = torch.tensor([logits.shape[1]])
    all_widths = [torch.zeros_like(width) for _ in range(N)]
    dist.all_gather(all_widths, width)
    most = int(max(all_widths))
    padded = torch.full((len(logits), most), -torch.inf, dtype=logits.dtype)
    padded[:, : logits.shape[1]] = logits.detach()
    gathered = [torch.empty_like(padded) for _ in range(N)]
    dist.all_gather(gathered, padded)
    parts = [part[:, : int(n)] for part, n in zip(gathered, all_widths)]
    parts[dist.get_rank()] = logits
    return torch.nn.functional.cross_entropy(torch.cat(parts, 1), targets)
"""),
    Mistake("reduces_behind_the_activation_too", "wrong", 50,
            "mlp, N = 2, 32 elements: rank 0: y is something else than that of one process",
            (MLP, "return g(g(torch.nn.functional.gelu(f(x) @ part.A)) @ part.B)")),
    Mistake("reduces_each_sum", "costly", 80,
            "collectives: 7; the best known needs 6, 4 + 2",
            (SUMS, "total, of_target = g(z.exp().sum(1)), g(of_target)")),
    Mistake("reduces_without_autograd", "wrong", 55,
            "gradient of the logits is missing: nothing that has a gradient leads there",
            (SUMS, "total, of_target = _sum(torch.stack([z.exp().sum(1), of_target]).detach())")),
    Mistake("returns_the_parts_output", "wrong", 25,
            "rank 0: y is this rank's term of the sum alone: all-reduce",
            (G, "return between(x, _same, _same)")),
    Mistake("subtracts_its_own_largest_logit", "wrong", 50,
            "loss is made of sums of which each has another largest logit: take that of all ranks",
            (LARGEST, "")),
    Mistake("takes_each_query_for_itself", "costly", 70,
            "collectives: 8; the best known needs 6, 4 + 2",
            ("    x = f(x)\n    return g(attend(x @ part.Q, x @ part.K, x @ part.V, heads)",
             "    return g(attend(f(x) @ part.Q, f(x) @ part.K, f(x) @ part.V, heads)")),
    Mistake("takes_the_largest_for_a_sum", "wrong", 50,
            "loss is not finite: subtract the largest logit, that of all ranks, before exp",
            ("dist.all_reduce(largest, dist.ReduceOp.MAX)", "dist.all_reduce(largest)")),
    Mistake("takes_targets_for_its_own", "wrong", 50,
            "loss, N = 3, 8 elements: rank 0: loss is something else than that of one process",
            ("places = targets - first", "places = targets.remainder(logits.shape[1])")),
]  # fmt: skip
