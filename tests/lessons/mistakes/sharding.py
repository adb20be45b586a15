"""Typical mistakes of lab 8."""

from tests.lessons.mistakes import Mistake

CUT = "torch.tensor_split(g, N), torch.tensor_split(x, N)"

MISTAKES = [
    Mistake("does_not_gather", "wrong", 40, "rank 0 holds the old x in chunk 0: nobody has sent it the new one",
            ("    for s in range(N - 1):\n"
            '        sent.append(transport.isend(x_chunks[(r + 1 - s) % N], right, "parameters"))\n'
            '        transport.recv(left, "parameters").copy_to(x_chunks[(r - s) % N])\n',
             "")),
    Mistake("drops_the_tail", "wrong", 40, "N = 4, 10 elements, step 1: no rank updated elements 8 to 9 of x",
            ("g_chunks, x_chunks = torch.tensor_split(g, N), torch.tensor_split(x, N)",
             "size = len(x) // N\n"
            "    g_chunks, x_chunks = ([vector[i * size : (i + 1) * size] for i in range(N)] for vector in (g, x))")),
    Mistake("forgets_the_mean", "wrong", 40, "rank 0 updated chunk 1 with the sum of the gradients; expected their mea",
            ("(x_chunks[own], g_chunks[own] / N)", "(x_chunks[own], g_chunks[own])")),
    Mistake("gathers_before_the_update", "wrong", 40, "rank 0 holds the old x in chunk 0, for rank 2 sent it so",
            ("    update(x_chunks[own], g_chunks[own] / N)\n", ""),
            ("for work in sent:  # until its neighbour has read what it sent",
             "update(x_chunks[own], g_chunks[own] / N)\n"
            "    for work in sent:  # until its neighbour has read what it sent")),
    Mistake("gathers_both", "costly", 68, "the mean gradient is sent on to others, who need only the new x",
            ("own = (r + 1) % N  # whose sum is finished here",
             "for s in range(N - 1):\n"
            '        sent.append(transport.isend(g_chunks[(r + 1 - s) % N], right, "mean"))\n'
            '        transport.recv(left, "mean").copy_to(g_chunks[(r - s) % N])\n'
            "    own = (r + 1) % N  # whose sum is finished here")),
    Mistake("one_rank_updates", "costly", 76, "the optimizer of rank 0 keeps 40,000 numbers, more than its share",
            """def step(transport, x, g, update):
    N, r = transport.world_size, transport.rank
    if r != 0:
        transport.isend(g, 0, "gradient").wait()
        transport.recv(0, "parameters").copy_to(x)
        return
    for peer in transport.peers:
        with transport.recv(peer, "gradient") as received:
            g.add_(received.vector)
    update(x, g / N)
    for work in [transport.isend(x, peer, "parameters") for peer in transport.peers]:
        work.wait()
"""),
    Mistake("shares_the_gradient_as_x", "wrong", 40, "rank 0 holds gradients in chunk 0 of x",
            ("x_chunks[(r + 1 - s) % N]", "(g_chunks if s == 0 else x_chunks)[(r + 1 - s) % N]")),
    Mistake("swaps_the_arguments", "update", 0, "update was given a slice of g to be updated",
            ("update(x_chunks[own], g_chunks[own] / N)",
             "g_chunks[own].div_(N)\n    update(g_chunks[own], x_chunks[own])")),
    Mistake("takes_its_own_gradient", "wrong", 40, "No chunk of g on this rank is the sum over all ranks: reduce-scatt",
            ("    for s in range(N - 1):\n"
            '        sent.append(transport.isend(g_chunks[(r - s) % N], right, "gradient"))\n'
            '        with transport.recv(left, "gradient") as received:\n'
            "            g_chunks[(r - s - 1) % N].add_(received.vector)\n",
             ""), ("(x_chunks[own], g_chunks[own] / N)", "(x_chunks[own], g_chunks[own])")),
    Mistake("updates_a_copy", "wrong", 0, "called update with a tensor that is no slice of x, such as a copy",
            ("update(x_chunks[own], g_chunks[own] / N)",
             "part = x_chunks[own].clone()\n    update(part, g_chunks[own] / N)\n    x_chunks[own].copy_(part)")),
    Mistake("updates_all_of_x", "wrong", 40, "ranks 0 and 1 both updated elements 0 to 11 of x, so both keep their sta",
            ("    g_chunks, x_chunks = torch.tensor_split(g, N), torch.tensor_split(x, N)",
             "    g_chunks = torch.tensor_split(g, N)"),
            ("    own = (r + 1) % N  # whose sum is finished here\n    update(x_chunks[own], g_chunks[own] / N)\n",
             ""), ('x_chunks[(r + 1 - s) % N], right, "parameters"', 'g_chunks[(r + 1 - s) % N], right, "mean"'),
            ('        transport.recv(left, "parameters").copy_to(x_chunks[(r - s) % N])',
             '        transport.recv(left, "mean").copy_to(g_chunks[(r - s) % N])'),
            ("work.wait()", "work.wait()\n    update(x, g / N)")),
    Mistake("updates_another_chunk", "wrong", 40, "On this rank the reduced chunk is chunk 1: update that one",
            ("own = (r + 1) % N", "own = r")),
    Mistake("updates_before_it_reduces", "wrong", 40, "When it was updated, the sum of that chunk was not finished",
            ("sent = []", "sent = []\n    own = (r + 1) % N\n    update(x_chunks[own], g_chunks[own])"),
            ("    own = (r + 1) % N  # whose sum is finished here\n    update(x_chunks[own], g_chunks[own] / N)\n",
             "")),
    Mistake("cuts_unevenly", "costly", 76, "numbers, more than its share",
            (f"g_chunks, x_chunks = {CUT}", "ends = [len(x) * (i + 1) // (2 * N) for i in range(N - 1)]\n"
             f"    g_chunks, x_chunks = {CUT.replace('N)', 'ends)')}")),
]  # fmt: skip
