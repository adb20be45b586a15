"""Typical mistakes of lab 7: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "begins_with_its_own": ("wrong", "hold different bits in element"),
    "begins_with_rank_0": ("costly", "all ranks send to rank 0 first, whose card takes one code after the other"),
    "changes_g": ("damage", "rank 0: compress changed g, which belongs to the caller"),
    "chooses_by_g": ("wrong", "it chooses by g alone, without what was kept"),
    "chooses_by_value": ("wrong", "it chooses the largest values; expected the largest magnitudes"),
    "clears_everything": ("wrong", "the residual is zero everywhere, so element"),
    "compresses_twice": ("wrong", "exchange leaves another residual than compress does"),
    "divides_by_senders": ("wrong", "expected a division by N = 2: a rank that does not send an element sends 0"),
    "does_not_cap_k": (
        "raised",
        "N = 1, 4 elements: rank 0 raised RuntimeError: selected index k out of range",
    ),
    "forgets_to_divide": ("wrong", "exchange returns the sum of the codes; expected their mean: divide by N"),
    "forgets_what_was_kept": ("wrong", "which is g alone; "),
    "keeps_what_it_sent": ("wrong", "though it was sent: it would be sent again"),
    "leaves_itself_out": ("wrong", "rank 0: exchange returns the code of rank 1 / 2; expected the mean of all 2"),
    "overwrites": ("wrong", "holds the part of one of them: where codes have an element in common, add"),
    "rebinds_the_residual": ("wrong", "the residual is as it was before, so what is not sent is lost"),
    "replaces_the_residual": ("wrong", "the residual has forgotten what it held before the step"),
    "returns_long_indices": (
        "returned",
        "rank 0: compress returned indices of int64; expected int32",
    ),
    "sends_long_indices": ("costly", "the indices travel as int64, 8 bytes each, where int32 has 4"),
    "sends_magnitudes": ("wrong", "compress sends magnitudes, without their signs"),
    "sends_two_messages": ("costly", "a code is two messages, where one can carry both"),
    "unpacks_k_of_fewer": ("raised", "here k = 7 and P = 4: a code has 4 elements, also for unpack"),
    "sends_zeros": ("costly", "rank 0 sends 160,000 bytes, a whole vector, where a code has 3,200"),
}
