"""Typical mistakes of lab 8: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "does_not_gather": ("wrong", "rank 0 holds the old x in chunk 0: nobody has sent it the new one"),
    "drops_the_tail": ("wrong", "N = 4, 10 elements, step 1: no rank updated elements 8 to 9 of x"),
    "forgets_the_mean": ("wrong", "rank 0 updated chunk 1 with the sum of the gradients; expected their mean"),
    "gathers_before_the_update": ("wrong", "rank 0 holds the old x in chunk 0, for rank 2 sent it so"),
    "gathers_both": ("costly", "the mean gradient is sent on to others, who need only the new x"),
    "gathers_gradients": ("wrong", "its g holds the finished gradient there, but its optimizer has no state for"),
    "one_rank_updates": ("costly", "the optimizer of rank 0 keeps 40,000 numbers, more than its share"),
    "shares_the_gradient_as_x": ("wrong", "rank 0 holds gradients in chunk 0 of x"),
    "swaps_the_arguments": ("update", "update was given a slice of g to be updated"),
    "takes_its_own_gradient": ("wrong", "No chunk of g on this rank is the sum over all ranks: reduce-scatter"),
    "updates_a_copy": ("wrong", "called update with a tensor that is no slice of x, such as a copy"),
    "updates_all_of_x": ("wrong", "ranks 0 and 1 both updated elements 0 to 11 of x, so both keep their state"),
    "updates_before_it_reduces": ("wrong", "When it was updated, the sum of that chunk was not finished"),
    "updates_another_chunk": ("wrong", "On this rank the reduced chunk is chunk 1: update that one"),
}
