"""Typical mistakes of lab 12."""

from tests.lessons.mistakes import Mistake

SUB = "torch.sub(fragment.x0, fragment.x, out=fragment.sum)"
MEAN = "d = fragment.sum.div_(n)"
KEEP = "fragment.momentum.mul_(MOMENTUM).add_(d)"
STEP = "fragment.x0.sub_(OUTER_LR * (d + MOMENTUM * fragment.momentum))"
BLEND = "fragment.x.mul_(alpha).add_(fragment.x0, alpha=1 - alpha)"
DUE = "if t > fragment.tau and (t - fragment.tau - fragment.offset) % fragment.H == 0:"
TURN = "if (t - fragment.offset) % fragment.H == 0:"
KEPT = "send.__dict__[fragment.tag]"  # from one call to the next
END = "sums.end(fragment.tag)"
USE = "use(sums, fragment, fragment.alpha)"

MISTAKES = [
    Mistake("changes_the_sign", "wrong", 22, "outer_step: N = 2, x0 goes away from the mean of all x: the outer gradie",
            (SUB, SUB.replace("0, fragment.x", ", fragment.x0"))),
    Mistake("sums", "wrong", 22, "the sum of all differences; expected their mean: divide by what end returns",
            (MEAN, "d = fragment.sum")),
    Mistake("keeps_its_own", "wrong", 22, "each rank takes its own difference; expected the mean over all ranks",
            (SUB, f"{SUB}\n    fragment.sum.own = fragment.sum.clone()"), (MEAN, "d = fragment.sum.own")),
    Mistake("averages", "wrong", 22, "x0 becomes the mean of all x, as in FedAvg; expected a step of SGD from x0",
            (STEP, "fragment.x0.sub_(d)")),
    Mistake("forgets_the_rate", "wrong", 22, "x0 steps without the outer learning rate",
            (STEP, STEP.replace("OUTER_LR * ", ""))),
    Mistake("forgets_the_momentum", "wrong", 22, "x0 steps without momentum", (STEP, "fragment.x0.sub_(OUTER_LR * d)")),
    Mistake("does_not_look_ahead", "wrong", 22, "outer_step: N = 2, x0 steps by plain momentum; Nesterov's",
            (STEP, STEP.replace("(d + MOMENTUM * fragment.momentum)", "fragment.momentum"))),
    Mistake("damps_the_momentum", "wrong", 22, "the momentum takes 1 - MOMENTUM of d, as in Adam; expected MOMENTUM m",
            (KEEP, KEEP.replace("(d)", "(d, alpha=1 - MOMENTUM)"))),
    Mistake("takes_the_mean_for_the_gradient", "wrong", 22, "is the mean of all x; expected x0 less that mean",
            (SUB, "fragment.sum.copy_(fragment.x)")),
    Mistake("begins_the_momentum_again", "wrong", 22, "begins at 0 in every outer step: change fragment.momentum, in p",
            (KEEP, "fragment.momentum.copy_(d)")),
    Mistake("steps_from_the_drifted_x", "wrong", 22, "the outer step begins at x, which has drifted; expected x0, wher",
            (STEP, STEP.replace("x0.sub_", "x0.copy_(fragment.x).sub_"))),
    Mistake("leaves_x0", "wrong", 22, "x takes the outer step, but x0 stays: the next difference is that from the new",
            (STEP, f"old = fragment.x0.clone()\n    {STEP}"), (BLEND, f"{BLEND}\n    fragment.x0.copy_(old)")),
    Mistake("does_not_restart", "wrong", 22, "x0 is right, but x goes on as if nothing had come", (BLEND, "")),
    Mistake("assigns_a_new_tensor", "raised", 0, "AttributeError: fragment.x0 = ... makes another; change it in place:",
            (STEP, STEP.replace("x0.sub_(", "x0 = fragment.x0 - ("))),
    Mistake("sums_in_float64", "costly", 60, "more is summed than one difference of a fragment in its turn; bytes to t",
            (SUB, f"{KEPT} = sent = (fragment.x0 - fragment.x).double()"),
            ("sums.begin(fragment.sum, 1", "sums.begin(sent, 1"), (MEAN, f"d = {KEPT}.div_(n).to(fragment.x.dtype)")),
    Mistake("swaps_the_shares", "wrong", 52, "alpha is the share of x0; expected that of x",
            (USE, USE.replace("fragment.alpha", "1 - fragment.alpha"))),
    Mistake("does_not_blend", "wrong", 52, "x is replaced by x0, so the local steps since it was sent are lost: blend",
            (USE, "use(sums, fragment, 0)")),
    Mistake("blends_the_old_x0", "wrong", 52, "x is blended with x0 as it was before the outer step",
            (STEP, f"old = fragment.x0.clone()\n    {STEP}"),
            (BLEND, BLEND.replace("fragment.x0", "old if alpha else fragment.x0"))),
    Mistake("blends_what_it_sent", "wrong", 52, "x as it was sent is blended with x0; expected x as it is now, tau ste",
            (SUB, f"{SUB}\n    {KEPT} = fragment.x.clone()"),
            (BLEND, BLEND.replace("x.mul_", f"x.copy_({KEPT}).mul_"))),
    Mistake("ignores_the_offset", "sum", 30, "end('fragment 1'): nothing of it is on its way; it is sent when t > 0 an",
            (TURN, TURN.replace("(t - fragment.offset)", "t"))),
    Mistake("ends_what_was_never_sent", "sum", 30, "N = 2, step 1: rank 0: end('fragment 0'): nothing of it",
            (DUE, DUE.replace("t > fragment.tau and ", ""))),
    Mistake("uses_before_it_sends", "sum", 45, "(t - 1) mod 3 = 0, and used tau = 0 steps later", """
def stream(sums, fragment, t):
    if t > fragment.tau and (t - fragment.tau - fragment.offset) % fragment.H == 0:
        use(sums, fragment, fragment.alpha)
    if (t - fragment.offset) % fragment.H == 0:
        send(sums, fragment)
"""),
    Mistake("sends_twice", "sum", 30, "begin('fragment 1'): its last sum was never ended, and so not used; it",
            (TURN, f"{TURN}\n        send(sums, fragment)\n    {TURN}")),
    Mistake("sums_x_itself", "sum", 30, "begin('fragment 1'): x takes local steps while it is summed: sum a",
            (f"    {SUB}\n    sums.begin(fragment.sum, 1", "    sums.begin(fragment.x, 1"),
            (MEAN, "d = fragment.x0 - fragment.x / n")),
    Mistake("uses_it_at_once", "wrong", 30, " in fragment 1, whose turn was 0 steps ago; expected ",
            (DUE, TURN)),
    Mistake("changes_what_is_on_its_way", "wrong", 52, "fragment.sum is changed between begin and end",
            (TURN, f"{SUB}\n    {TURN}")),
    Mistake("waits_at_once", "costly", 87, "a sum is waited for in the step in which it is begun: end it tau steps lat",
            ("        send(sums, fragment)\n", f"        send(sums, fragment)\n        {KEPT} = {END}\n"),
            (f"n = {END}", f"n = send.__dict__.pop(fragment.tag, None) or {END}")),
    Mistake("still_without_stream", "hole", 30, ".py: stream; right so far: outer_step",
            'def stream(sums, fragment, t):\n    raise NotImplementedError("stream")\n'),
]  # fmt: skip
