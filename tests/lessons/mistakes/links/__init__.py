"""Typical mistakes of lab 6: the kind of the verdict on each, and what must stand in its line."""

EXPECTED = {
    "always_takes_the_ring": ("wrong", "you chose 'ring' for all 9 clusters, and each of the three is the best"),
    "asks_its_neighbours": ("wrong", "rank 3) / 4; expected each rank once, divided by 4: all parts have come on"),
    "changes_what_it_sends": (
        "damage",
        "wait for its Work; two that wait before they receive are a deadlock: send",
    ),
    "counts_a_latency_for_each_worker": ("wrong", "2 (N - 1) latencies are counted, one for each message; while"),
    "counts_a_server_of_four_by_its_workers": ("wrong", "you choose as if N - 3 quarters passed a card one after"),
    "counts_all_ranks_in_turn": ("wrong", "N messages are counted one after the other in each step; on a ring all"),
    "counts_n_for_n_minus_1": ("wrong", "2 N latencies are counted: in each round the chunk is there after N - 1"),
    "counts_one_round": ("wrong", "N - 1 latencies are counted, and a ring goes round twice"),
    "counts_the_latency_once": ("wrong", "the latency is counted once; a rank sends a chunk when it has received"),
    "divides_in_each_round": (
        "wrong",
        "rank 3) / 16: every rank is in it once, but divided by 16: divide by N once",
    ),
    "forgets_full_duplex": ("wrong", "2 (N - 1) vectors are counted one after the other; a card is full duplex"),
    "forgets_to_divide": ("wrong", "all_reduce: N = 2, 8 elements: rank 0 ends with the sum; expected the mean"),
    "goes_round_the_ring": ("costly", "messages of a rank: 14; the best known needs 3, log2 N"),
    "ignores_compute": ("wrong", "you choose as if computing took no time, or equally long in all three"),
    "ignores_latency": ("wrong", "you choose as if messages had no latency"),
    "returns_milliseconds": ("wrong", "yours is 1,000 times as long in every cluster: return seconds"),
    "sends_on_to_the_next": ("wrong", "all ranks hold the mean, but element "),
    "sends_to_everyone": ("costly", "yours is faster here, for a message costs its sender nothing but the time"),
    "shares_the_batch_over_all_ranks": ("wrong", "equally long in all three: servers compute nothing, and fewer"),
    "sends_whole_vectors_round": ("wrong", "whole vectors are counted, 2 (N - 1) of them; a message of a ring is"),
    "stays_with_one_peer": ("wrong", "ends with (2 x rank 0 + 2 x rank 1) / 4, without rank 2, 3: after s rounds"),
    "takes_bits_for_bytes": ("wrong", "bits are taken for bytes: a byte has 8 bits"),
}
