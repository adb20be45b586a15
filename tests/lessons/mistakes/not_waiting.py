"""Typical mistakes of lab 4."""

from tests.lessons.mistakes import Mistake

MISTAKES = [
    Mistake("answers_before_the_update", "wrong", "which does not have its own gradient in it, which made version 1",
            ("x.clone()", "before"), ("with message:", "before = x.clone()\n            with message:")),
    Mistake("answers_everyone", "unread", "was sent x though it waited for none: answer only who has sent a gradient",
            ('transport.isend(x.clone(), k, "parameters")  # a copy: x may change while it is on its way',
             'for peer in steps:\n                    transport.isend(x.clone(), peer, "parameters")')),
    Mistake("begins_without_gradients", "wrong", "made with no gradient; expected that at x_0, since before x_0",
            ("x[max(t - tau, 0)]", "(x[t - tau] if t >= tau else 0.0)")),
    Mistake("counts_steps_of_workers", "wrong",
            "serve returned how many of its own steps a worker is behind the furthest",
            ("while steps:", "taken = dict.fromkeys(transport.peers, 0)\n    while steps:"),
            ("            staleness.append(version - read[k])\n", ""),
            ("steps[k] += 1",
             "steps[k] += 1\n            taken[k] += 1\n"
            "            staleness.append(max(taken.values()) - taken[k])")),
    Mistake("counts_the_version_it_makes", "wrong", "every staleness is 1 too large",
            ("            version += 1\n", ""),
            ("update(message.vector)", "update(message.vector)\n            version += 1")),
    Mistake("counts_those_who_have_left", "deadlock",
            "ahead of the slowest that is still at work, and s = 1 allows that since",
            ("while steps:", "present = set(transport.peers)\n    while present:"),
            ("del steps[k]", "present.remove(k)")),
    Mistake("divides_by_the_gradients_on_their_way", "wrong",
            "too large: with it x swings ever further, to a million after",
            """def largest_rate(curvature, tau):
    return 2 / (curvature * (tau + 1))
"""),
    Mistake("forgets_the_curvature", "wrong", "the curvature is not in it: twice as curved, half the rate",
            """def largest_rate(curvature, tau):
    import math
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
"""),
    Mistake("forgets_the_others_at_a_goodbye", "deadlock", "has said goodbye and left",
            ("del steps[k]", "del steps[k]\n            continue")),
    Mistake("forgets_who_has_read_what", "wrong", "that was applied to version ",
            ("(version - read[k])", "(version - max(read.values()))")),
    Mistake("has_no_bound", "wrong", "was answered when it was 2 steps ahead of rank",
            ("if s is None or steps[k] - min(steps.values()) <= s:", "if True:")),
    Mistake("holds_back_at_the_bound", "wrong",
            "is held back, though it is 1 step ahead of the slowest, and s = 1 allows that",
            ("(steps.values()) <= s:", "(steps.values()) < s:")),
    Mistake("holds_back_the_slowest", "wrong",
            "is held back, though it is 0 steps ahead of the slowest, and s = 1 allows that",
            ("steps[k] - min(steps.values())", "max(steps.values()) - steps[k]")),
    Mistake("ignores_staleness", "wrong",
            "that is the largest without staleness; with gradients 2 late x swings ever further",
            """def largest_rate(curvature, tau):
    return 2 / curvature
"""),
    Mistake("is_one_step_too_late", "wrong",
            "x_4 was made with the gradient at x_0; expected that at x_1, 2 before x_3",
            ("(x[t] - rate * curvature * x[max(t - tau, 0)])",
             "(x[t] - rate * curvature * x[max(t - tau - 1, 0)])")),
    Mistake("leaves_the_curvature_out_of_the_gradient", "wrong",
            ": the step was rate * x_0; the gradient is curvature * x_0", ("curvature * x", "x")),
    Mistake("looks_at_the_sender_only", "deadlock", "has moved on: after every message look at all who wait",
            ("in sorted(waiting)", "in waiting & {k}")),
    Mistake("reads_when_the_gradient_comes", "wrong", "staleness 0; serve returned 1",
            ("steps[k] += 1", "steps[k] += 1\n            read[k] = version"),
            ("                read[k] = version\n", "")),
    Mistake("receives_in_the_order_of_ranks", "wrong", "virtual ms before; receive from ANY",
            """def serve(transport, x, update, s=None):
    version, staleness = 0, []
    read = dict.fromkeys(transport.peers, 0)
    present = list(transport.peers)
    while present:
        for k in list(present):
            message = transport.recv(k, ("gradient", "goodbye"))
            if message.tag == "goodbye":
                present.remove(k)
                continue
            with message:
                update(message.vector)
            staleness.append(version - read[k])
            version += 1
            read[k] = version
            transport.isend(x.clone(), k, "parameters")
    return staleness
"""),
    Mistake("returns_versions_read", "wrong",
            "serve returned the versions that were read; staleness is the version applied to",
            ("version - read", "read")),
    Mistake("sends_the_x_of_when_it_was_held_back", "wrong", "the x of when it was held back; send the x of now",
            ("set[int] = set()", "dict[int, torch.Tensor] = {}"),
            ("waiting.add(k)", "waiting[k] = x.clone()\n            read[k] = version"),
            ("                waiting.remove(k)\n                read[k] = version\n", ""),
            ("x.clone(), k,", "waiting.pop(k), k,")),
    Mistake("sends_x_itself", "damage", "or send a copy, x.clone(), so that nobody waits", ("x.clone()", "x")),
    Mistake("updates_an_old_x", "wrong", "on version 0, though there had been ",
            ("while steps:", "old = {k: x.clone() for k in transport.peers}\n    while steps:"),
            ("with message:", "x.copy_(old[k])\n            with message:"),
            ("read[k] = version", "read[k] = version\n                old[k] = x.clone()")),
    Mistake("waits_for_all", "wrong", "update 1 was made with (g of rank 1 + g of rank 2) / 2: who waits for several",
            """def serve(transport, x, update, s=None):
    staleness = []
    present = set(transport.peers)
    due: dict[int, torch.Tensor] = {}
    while present:
        message = transport.recv(ANY, ("gradient", "goodbye"))
        if message.tag == "goodbye":
            present.remove(message.src)
        else:
            due[message.src] = message.detach().vector
        if due and set(due) == present:
            update(torch.stack([due[k] for k in sorted(due)]).mean(0))
            staleness += [0] * len(due)
            for k in due:
                transport.isend(x.clone(), k, "parameters")
            due = {}
    return staleness
"""),
]  # fmt: skip
