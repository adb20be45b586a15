"""Typical mistakes of lab 5."""

from tests.lessons.mistakes import Mistake

MISTAKES = [
    Mistake("adds_its_own_again", "wrong", "of its own twice: the server's x has what was pushed; only what was not",
            ("SERVER = 0", "SERVER = 0\npushed: list[torch.Tensor] = []"),
            ("base.copy_(x)", "pushed.append(x - base)\n    base.copy_(x)"),
            ("torch.add(base, unpushed, out=x)",
             "torch.add(base, unpushed, out=x)\n    x.add_(sum(pushed))\n    base.add_(sum(pushed))\n"
            "    pushed.clear()")),
    Mistake("goes_on_without_its_steps", "wrong", "of its own, not pushed yet: the client goes on without its own work",
            ("torch.add(base, unpushed, out=x)", "x.copy_(base)\n    base.sub_(unpushed)")),
    Mistake("moves_base_by_fetch_only", "wrong",
            "again, already pushed; what is pushed is to be taken off: a push is to", ("    base.copy_(x)\n", ""),
            ("    unpushed = x - base\n", ""), ("torch.add(base, unpushed, out=x)", "x.copy_(base)")),
    Mistake("moves_base_first", "wrong", "though no fetch has come since: where base is moved first, x - base is 0",
            """def push(transport, x, base):
    base.copy_(x)
    transport.isend(x - base, SERVER, "push")
"""),
    Mistake("names_a_new_x", "wrong", "with a minus: a fetch has put them into base, and not into x (`x = ...` names a",
            ("torch.add(base, unpushed, out=x)", "x = base + unpushed")),
    Mistake("names_new_tensors", "wrong",
            "its x is as before: `x = ...` names a new tensor; write into x (copy_, add_)",
            ('transport.recv(SERVER, "parameters").copy_to(base)\n    torch.add(base, unpushed, out=x)',
             'with transport.recv(SERVER, "parameters") as received:\n        base = received.vector.clone()\n'
            "    x = base + unpushed")),
    Mistake("never_moves_base", "wrong",
            "by a push nor a fetch (`base = ...` does not change the caller's base). In the server's x, of 6 ",
            ("    base.copy_(x)\n", ""),
            ('unpushed = x - base\n    transport.recv(SERVER, "parameters").copy_to(base)\n'
            "    torch.add(base, unpushed, out=x)",
             'transport.recv(SERVER, "parameters").copy_to(x)')),
    Mistake("pushes_values", "wrong", "push 1 of rank 1 holds x itself, a value, and not what rank 1 has added to it",
            """def push(transport, x, base):
    transport.isend(x, SERVER, "push")
""",
            """def fetch(transport, x, base):
    transport.isend(None, SERVER, "fetch")
    transport.recv(SERVER, "parameters").copy_to(x)
""",
            """def apply(x, pushed):
    x.copy_(pushed)
"""),
    Mistake("pushes_what_it_fetched", "wrong", "with a fetch",
            ('transport.recv(SERVER, "parameters").copy_to(base)',
             'with transport.recv(SERVER, "parameters") as received:'),
            ("    torch.add(base, unpushed, out=x)", "        torch.add(received.vector, unpushed, out=x)")),
    Mistake("takes_a_mean", "wrong",
            "divided by the 2 clients: gradients of one step have a mean, steps that were taken",
            ('    transport.isend(x - base, SERVER, "push")',
             '    transport.isend((x - base) / len(transport.peers), SERVER, "push")')),
    Mistake("takes_a_mean_on_the_server", "wrong",
            "counts 0.031 in the end: apply takes a mean of x and what was pushed",
            ("x.add_(pushed)", "x.add_(pushed).div_(2)")),
    Mistake("takes_its_own_into_base", "wrong",
            "x still has it after that fetch, but base has it too, as if the server",
            ('transport.recv(SERVER, "parameters").copy_to(base)\n    torch.add(base, unpushed, out=x)',
             'transport.recv(SERVER, "parameters").copy_to(x)\n    x.add_(unpushed)\n    base.copy_(x)')),
    Mistake("throws_steps_away", "wrong", "made before a fetch: that fetch has thrown away what was not pushed yet",
            ("    unpushed = x - base\n", ""), ("torch.add(base, unpushed, out=x)", "x.copy_(base)")),
    Mistake("waits_before_it_asks", "deadlock",
            "rank 0 waits for 'push' or 'fetch' or 'goodbye' from anybody; rank 1 waits for 'parameters' from rank 0; "
            "no client has sent 'fetch', which the server answers with 'parameters'",
            ('    transport.isend(None, SERVER, "fetch")\n', ""),
            ("torch.add(base, unpushed, out=x)",
             'transport.isend(None, SERVER, "fetch")\n    torch.add(base, unpushed, out=x)')),
    Mistake("writes_over_x", "wrong", "the x that the server began with is gone: apply writes what was pushed over it",
            ("    x.add_(pushed)", "    x.copy_(pushed)")),
]  # fmt: skip
