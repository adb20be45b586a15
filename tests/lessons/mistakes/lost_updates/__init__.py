"""Typical mistakes of lab 5: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "adds_its_own_again": ("wrong", "of its own twice: the server's x has what was pushed; only what was not"),
    "goes_on_without_its_steps": ("wrong", "of its own, not pushed yet: the client goes on without its own work"),
    "moves_base_by_fetch_only": ("wrong", "again, already pushed; what is pushed is to be taken off: a push is to"),
    "moves_base_first": ("wrong", "though no fetch has come since: where base is moved first, x - base is 0"),
    "names_a_new_x": ("wrong", "with a minus: a fetch has put them into base, and not into x (`x = ...` names a"),
    "names_new_tensors": ("wrong", "its x is as before: `x = ...` names a new tensor; write into x (copy_, add_)"),
    "never_moves_base": (
        "wrong",
        "by a push nor a fetch (`base = ...` does not change the caller's base). In the server's x, of 6 ",
    ),
    "pushes_values": ("wrong", "push 1 of rank 1 holds x itself, a value, and not what rank 1 has added to it"),
    "pushes_what_it_fetched": ("wrong", "with a fetch"),
    "takes_a_mean": ("wrong", "divided by the 2 clients: gradients of one step have a mean, steps that were taken"),
    "takes_a_mean_on_the_server": ("wrong", "counts 0.031 in the end: apply takes a mean of x and what was pushed"),
    "takes_its_own_into_base": ("wrong", "x still has it after that fetch, but base has it too, as if the server"),
    "throws_steps_away": ("wrong", "made before a fetch: that fetch has thrown away what was not pushed yet"),
    "waits_before_it_asks": (
        "deadlock",
        "deadlock: rank 1 waits for rank 0 (for 'parameters'), which waits for anybody (for ('push', 'fetch', "
        "'goodbye')); no client has sent 'fetch', which the server answers with 'parameters'",
    ),
    "writes_over_x": ("wrong", "the x that the server began with is gone: apply writes what was pushed over it"),
}
