"""Typical mistakes of lab 13."""

from tests.lessons.mistakes import Mistake

IN_TIME = "                answered = []\n"
YOUNG = "(2 * save_s * life_s / N) ** 0.5"

MISTAKES = [
    Mistake("adds_what_is_late", "wrong", "it is late, x has changed since: drop it; right so far: save, interval",
            ("has[message.src] == t", "has[message.src] <= t")),
    Mistake("answers_before_the_step", "answer", "n = 2; expected the number of a later step, whose x it is: who is in",
            (IN_TIME, "")),
    Mistake("begins_with_the_last_step", "wrong", " is in step 3; begin each step with none",
            ("            total.zero_()\n", "")),
    Mistake("changes_what_it_sends", "wrong", "collect sent x itself; send a copy, x.clone(), which no update",
            ("isend(x.clone()", "isend(x")),
    Mistake("divides_by_all", "wrong", ") / 3; expected the mean of 2 gradients", ("/ wanted", "/ (wanted + b)")),
    Mistake("does_not_answer_the_late", "deadlock", "; answer every gradient, a late one at once, until all have said",
            ("answered = [message.src]", "answered = []")),
    Mistake("forgets_half", "wrong", "a failure loses half an interval on average, not all of one", ("2 * ", "")),
    Mistake("forgets_machines", "wrong", "of N machines one dies N times as often; right so far: save", (" / N)", ")")),
    Mistake("forgets_momentum", "wrong", "save: velocity is not saved; without it momentum begins anew",
            (', "velocity": training.velocity.clone()', "")),
    Mistake("forgets_the_position", "wrong", "without it the epoch begins again, with", ('"position", ', "")),
    Mistake("forgets_the_random_state", "wrong", "without it dropout, and the next orders", (', "random"', "")),
    Mistake("lets_the_late_wait", "wrong", " ms: answer who is late at once; right so far: save, interval",
            ("answered = [message.src]",
             "answered = [message.src]\n        transport.sleep(1e-3 * (has[message.src] < t))")),
    Mistake("multiplies_by_machines", "wrong", "dies more often, not more seldom: divide by N", ("/ N", "* N")),
    Mistake("saves_always", "wrong", "save more seldom", (YOUNG, "save_s")),
    Mistake("saves_no_copies", "wrong", "save: x is not as it was when save was called; what", ("g.x.clone()", "g.x")),
    Mistake("saves_a_list", "wrong", "save: x is a list; expected a tensor [24] of float32", ("g.x.clone()", "g.x.tolist()")),
    Mistake("saves_too_much", "costly", "bytes of a checkpoint: 45128; the best known needs 13128, 2 P + the order",
            ('"random")}', '"random", "samples")}')),
    Mistake("says_minutes", "wrong", "these are minutes; expected seconds", ("return float(", "return 1 / 60 * float(")),
    Mistake("counts_from_0", "answer", "was sent n = 1; expected the number of a later step",
            ("wanted, has =", "t = 0\n    wanted, has =")),
    Mistake("counts_gradients", "answer", ", whose x it is: who is in time is answered when",
            ("has[k] = t", "has[k] += 1")),
    Mistake("sends_x_before_the_step", "wrong", "send x after the update, with its number as n; right so far: save",
            ("    total, in_time", "    old = x.clone()\n    total, in_time"),
            ("            update(total / wanted)", "            old = x.clone()\n            update(total / wanted)"),
            ("isend(x.clone()", "isend(old")),
    Mistake("takes_in_turn", "costly", ", until its (W - b)th gradient has come, from ANY",
            ("recv(ANY", "recv(next(k for k in [*has] * 2 if k not in in_time)")),
    Mistake("waits_for_all", "wrong", "step 2 has 3 gradients; expected the first W - b = 2 of 3",
            ("wanted, has = len(transport.peers) - b,", "wanted, has = len(transport.peers),")),
]  # fmt: skip
