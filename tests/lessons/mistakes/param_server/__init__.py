"""Typical mistakes of lab 1: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "divides_by_all_ranks": ("wrong", "the server divided by 3; there are 2 gradients"),
    "does_not_copy": ("unreleased", "step 1: rank 1 received x of rank 0 and never released it: use `with"),
    "leaves_one_out": ("wrong", "the server's gradient was g of rank 1; expected the mean of all 2"),
    "replies_to_one": ("deadlock", "the server has not sent x to rank 1, but to others"),
    "sends_the_old_x": ("wrong", "rank 1 holds the x from before the step"),
    "takes_the_sum": ("wrong", "N = 3, step 1: the server took the sum of the gradients; expected their mean"),
    "updates_for_each_gradient": ("wrong", "the server made 2 updates; expected 1"),
    "updates_on_the_worker": ("wrong", "rank 1 has made a step with its own gradient besides"),
    "waits_for_x_first": (
        "deadlock",
        "rank 0 waits for rank 1 (for 'gradient'), which waits for rank 0 (for 'parameters'); no worker has sent",
    ),
}
