"""Typical mistakes of lab 4: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "answers_before_the_update": ("wrong", "which does not have its own gradient in it, which made version 1"),
    "answers_everyone": ("unread", "was sent x though it waited for none: answer only who has sent a gradient"),
    "begins_without_gradients": ("wrong", "made with no gradient; expected that at x_0, since before x_0"),
    "counts_steps_of_workers": ("wrong", "serve returned how many of its own steps a worker is behind the furthest"),
    "counts_the_version_it_makes": ("wrong", "every staleness is 1 too large"),
    "counts_those_who_have_left": (
        "deadlock",
        "ahead of the slowest that is still at work, and s = 1 allows that since",
    ),
    "divides_by_the_gradients_on_their_way": ("wrong", "too large: with it x swings ever further, to a million after"),
    "forgets_the_curvature": ("wrong", "the curvature is not in it: twice as curved, half the rate"),
    "forgets_the_others_at_a_goodbye": ("deadlock", "has said goodbye and left"),
    "forgets_who_has_read_what": ("wrong", "that was applied to version "),
    "has_no_bound": ("wrong", "was answered when it was 2 steps ahead of rank"),
    "holds_back_at_the_bound": (
        "wrong",
        "is held back, though it is 1 step ahead of the slowest, and s = 1 allows that",
    ),
    "holds_back_the_slowest": (
        "wrong",
        "is held back, though it is 0 steps ahead of the slowest, and s = 1 allows that",
    ),
    "ignores_staleness": (
        "wrong",
        "that is the largest without staleness; with gradients 2 late x swings ever further",
    ),
    "is_one_step_too_late": ("wrong", "x_4 was made with the gradient at x_0; expected that at x_1, 2 before x_3"),
    "leaves_the_curvature_out_of_the_gradient": ("wrong", ": the step was rate * x_0; the gradient is curvature * x_0"),
    "looks_at_the_sender_only": ("deadlock", "has moved on: after every message look at all who wait"),
    "reads_when_the_gradient_comes": ("wrong", "staleness 0; serve returned 1"),
    "receives_in_the_order_of_ranks": ("wrong", "virtual ms before; receive from ANY"),
    "returns_versions_read": (
        "wrong",
        "serve returned the versions that were read; staleness is the version applied to",
    ),
    "sends_the_x_of_when_it_was_held_back": ("wrong", "the x of when it was held back; send the x of now"),
    "sends_x_itself": ("damage", "or send a copy, x.clone(), so that nobody waits"),
    "stops_too_early": ("wrong", "too small: with "),
    "updates_an_old_x": ("wrong", "on version 0, though there had been "),
    "waits_for_all": ("wrong", "update 1 was made with (g of rank 1 + g of rank 2) / 2: who waits for several"),
}
