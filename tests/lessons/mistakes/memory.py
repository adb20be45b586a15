"""Typical mistakes of lab 9."""

from tests.lessons.mistakes import Mistake

FREE = "    block.parameters = None\n"
OWN = "block.own_gradients = chunks[(r + 1) % N] / N"

RING = """def gather(transport, block):
    N, r = transport.world_size, transport.rank
    parameters = block.own.new_empty(sum(block.lengths))
    chunks = block.cut(parameters)
    chunks[(r + 1) % N].copy_(block.own)
    for s in range(N - 1):
        transport.isend(chunks[(r + 1 - s) % N], (r + 1) % N, "parameters").wait()
        transport.recv((r - 1) % N, "parameters").copy_to(chunks[(r - s) % N])
    block.parameters = parameters
"""
RING_OF_SUMS = """def reduce_scatter(transport, block):
    N, r = transport.world_size, transport.rank
    chunks = block.cut(block.gradients)
    sent = []
    for s in range(N - 1):
        sent.append(transport.isend(chunks[(r - s) % N], (r + 1) % N, "gradients"))
        with transport.recv((r - 1) % N, "gradients") as received:
            chunks[(r - s - 1) % N].add_(received.vector)
    for work in sent:
        work.wait()
    block.own_gradients = chunks[(r + 1) % N] / N
    block.gradients = None
"""

MISTAKES = [
    Mistake("adds_copies", "costly", 93, "reduce_scatter holds copies for a while: add to the chunks of block.gradient",
            ("    chunks = block.cut(block.gradients)\n", "    chunks = [*block.cut(block.gradients.clone())]\n")),
    Mistake("does_not_free", "kept", 20, "parameters are held; expected 0: block.parameters still refers to them: set",
            (FREE, '    block.name += ""\n')),
    Mistake("does_not_free_gradients", "kept", 20, "after reduce_scatter(block 3), 64 bytes of gradients are held; "
            "expected 16: block.gradients still refers to them: set it to None; it was never freed",
            ("    block.gradients = None\n", "")),
    Mistake("does_not_reduce", "wrong", 40, "(block 0) has kept g of rank 0 / 3 of chunk 1; expected the mean of chunk",
            ("chunks[(r + 1) % N].add_(received.vector)", "received.vector.sum()")),
    Mistake("empties", "kept", 20, "after free(block 0), 48 bytes of gathered parameters are held; expected 0: block.p",
            (FREE, "    block.parameters.zero_()\n")),
    Mistake("frees_before_the_passes", "wrong", 0, "after gather(block 0), block.parameters is nothing; expected",
            ("    block.parameters = parameters", "    block.parameters = parameters\n    free(block)")),
    Mistake("frees_when_the_next_comes", "kept", 20,
            "transport.allocate, which keeps it; it was freed too late, in free(block 1)",
            (FREE, '    free.__dict__["before"] = block.parameters\n' + FREE)),
    Mistake("gathers_a_list", "costly", 93, "gather holds more than one block for a while: copy each chunk to its plac",
            ("    block.parameters = parameters", "    block.parameters = parameters.clone()")),
    Mistake("keeps_a_list", "kept", 20, "0: something else refers to what block.parameters was: a list, a view, or "
            "transport.allocate, which keeps it; it was never freed",
            (FREE, '    free.__dict__.setdefault("kept", []).append(block.parameters)\n' + FREE)),
    Mistake("keeps_a_whole_copy", "kept", 20,
            "96 bytes of gathered parameters are held; expected 48: a copy is kept; it was never freed",
            ("    block.parameters = parameters", "    block.parameters = parameters\n"
             '    gather.__dict__.setdefault("x", []).append(parameters.clone())')),
    Mistake("keeps_a_view", "kept", 20, "block.own_gradients is a view, which keeps all of the gradients: copy the chu",
            (OWN, "block.own_gradients = chunks[(r + 1) % N].div_(N)")),
    Mistake("keeps_another_chunk", "wrong", 40, "has kept g of rank 0 / 3 of chunk 0; expected the mean of chunk 1",
            (OWN, "block.own_gradients = chunks[r] / N")),
    Mistake("keeps_the_chunk_of_another", "wrong", 40, "has kept the mean of chunk 2; expected the mean of chunk 1",
            (OWN, "block.own_gradients = chunks[(r + 1) % N] / N\n"
             '    transport.isend(block.own_gradients, (r - 1) % N, "mean")\n'
             '    transport.recv((r + 1) % N, "mean").copy_to(block.own_gradients)')),
    Mistake("puts_chunks_in_other_places", "wrong", 20, "gather(block 0) has put chunk 1 in the place of chunk 0, whic",
            ("chunks[(r + 1) % N].copy_(block.own)", "chunks[r].copy_(block.own)"),
            ("chunks[(k + 1) % N])", "chunks[k])")),
    Mistake("returns_what_it_gathers", "returned", 0, "after gather(block 0) returned a tensor [12] of float32; it",
            ("    block.parameters = parameters", "    return parameters")),
    Mistake("sums", "wrong", 40, "has kept the sum of chunk 1; expected the mean of chunk 1: the sum, divided by 3",
            (OWN, "block.own_gradients = chunks[(r + 1) % N].clone()")),
    Mistake("updates", "wrong", 40, "block.own of block 0 was changed; only the optimizer changes it",
            ("    block.gradients = None\n", "    block.gradients = None\n    block.own.sub_(block.own_gradients)\n")),
    Mistake("rings", "costly", 87, "right, but not the best. rounds: 36; the best known needs 12, 12",
            RING, RING_OF_SUMS),
]  # fmt: skip
