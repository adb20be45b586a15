"""Typical mistakes of lab 7."""

from tests.lessons.mistakes import Mistake

MISTAKES = [
    Mistake("begins_with_its_own", "wrong", "hold different bits in element",
            ("total = torch.zeros_like(g)\n    for rank in range(N):\n        if rank == transport.rank:\n"
            "            total.add_(decompress(indices, values, len(g)))\n            continue",
             "total = decompress(indices, values, len(g))\n    for rank in transport.peers:")),
    Mistake("changes_g", "damage", "rank 0: compress changed g, which belongs to the caller",
            ("residual.add_(g)", "g.add_(residual)\n    residual.copy_(g)")),
    Mistake("chooses_by_g", "wrong", "it chooses by g alone, without what was kept",
            ("residual.add_(g)",
             "indices = g.abs().topk(min(k, len(residual)), sorted=False).indices\n    residual.add_(g)"),
            ("    indices = residual.abs().topk(min(k, len(residual)), sorted=False).indices\n", "")),
    Mistake("chooses_by_value", "wrong", "it chooses the largest values; expected the largest magnitudes",
            ("residual.abs().topk", "residual.topk")),
    Mistake("clears_everything", "wrong", "the residual is zero everywhere, so element", ("[indices] = 0", ".zero_()")),
    Mistake("compresses_twice", "wrong", "exchange leaves another residual than compress does",
            ("code = pack(values, indices)",
             "code = pack(values, indices)\n    indices, values = compress(g, residual, k)")),
    Mistake("divides_by_senders", "wrong", "expected a division by N = 2: a rank that does not send an element sends 0",
            ("total = torch.zeros_like", "total, senders = torch.zeros_like(g), torch.zeros_like"),
            ("continue", "senders[indices.long()] += 1\n            continue"),
            ("return total.div_(N)",
             "        senders[indices_k.long()] += 1\n    return total / senders.clamp(min=1)")),
    Mistake("does_not_cap_k", "raised", "N = 1, 4 elements: rank 0 raised RuntimeError: selected index k out of range",
            ("min(k, len(residual))", "k")),
    Mistake("forgets_to_divide", "wrong", "exchange returns the sum of the codes; expected their mean: divide by N",
            ("total.div_(N)", "total")),
    Mistake("forgets_what_was_kept", "wrong", "which is g alone; ",
            """def compress(g, residual, k):
    indices = g.abs().topk(min(k, len(residual)), sorted=False).indices
    values = g[indices]
    residual.add_(g)
    residual[indices] -= values
    return indices.to(torch.int32), values
"""),
    Mistake("keeps_what_it_sent", "wrong", "though it was sent: it would be sent again",
            ("    residual[indices] = 0\n", "")),
    Mistake("leaves_itself_out", "wrong", "rank 0: exchange returns the code of rank 1 / 2; expected the mean of all 2",
            ("            total.add_(decompress(indices, values, len(g)))\n", "")),
    Mistake("overwrites", "wrong", "holds the part of one of them: where codes have an element in common, add",
            ("total.add_(decompress(indices, values, len(g)))", "total[indices.long()] = values"),
            ("total.add_(decompress(indices_k, values_k, len(g)))", "total[indices_k.long()] = values_k")),
    Mistake("rebinds_the_residual", "wrong", "the residual is as it was before, so what is not sent is lost",
            ("residual.add_(g)", "residual = residual + g")),
    Mistake("returns_long_indices", "returned", "rank 0: compress returned indices of int64; expected int32",
            ("indices.to(torch.int32)", "indices")),
    Mistake("sends_long_indices", "costly", "the indices travel as int64, 8 bytes each, where int32 has 4",
            ("(values, indices)", "(values, indices.long())"),
            ("(received.vector, (k, g.dtype), (k, torch.int32))",
             "(received.vector, (k, g.dtype), (k, torch.int64))")),
    Mistake("sends_magnitudes", "wrong", "compress sends magnitudes, without their signs",
            ("indices = residual.abs().topk(min(k, len(residual)), sorted=False).indices\n"
            "    values = residual[indices]",
             "values, indices = residual.abs().topk(min(k, len(residual)), sorted=False)")),
    Mistake("sends_two_messages", "costly", "a code is two messages, where one can carry both",
            ("    k = min(k, len(g))\n", ""), ("    code = pack(values, indices)\n", ""),
            ('transport.isend(code, peer, "code")',
             'transport.isend(indices, peer, "indices")\n        transport.isend(values, peer, "values")'),
            ('with transport.recv(rank, "code") as received:\n'
            "            values_k, indices_k = unpack(received.vector, (k, g.dtype), (k, torch.int32))\n"
            "            total.add_(decompress(indices_k, values_k, len(g)))",
             'with transport.recv(rank, "indices") as indices_k, transport.recv(rank, "values") as values_k:\n'
            "            total.add_(decompress(indices_k.vector, values_k.vector, len(g)))")),
    Mistake("sends_zeros", "costly", "rank 0 sends 160,000 bytes, a whole vector, where a code has 3,200",
            ("values_k, indices_k = unpack(received.vector, (k, g.dtype), (k, torch.int32))\n"
            "            total.add_(decompress(indices_k, values_k, len(g)))",
             "total.add_(received.vector)"), ("decompress(indices, values, len(g))", "code"),
            ("pack(values, indices)", "decompress(indices, values, len(g))")),
    Mistake("unpacks_k_of_fewer", "raised", "here k = 7 and P = 4: a code has 4 elements, also for unpack",
            ("    k = min(k, len(g))\n", "")),
]  # fmt: skip
