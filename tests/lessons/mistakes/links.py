"""Typical mistakes of lab 6."""

from tests.lessons.mistakes import Mistake

MISTAKES = [
    Mistake("always_takes_four_servers", "wrong", "you chose '4 servers' for all 9 clusters, and each of the three is",
            """def choose(N, nbytes, bandwidth, latency, compute):
    return "4 servers"
"""),
    Mistake("asks_its_neighbours", "wrong",
            "rank 3) / 4; expected each rank once, divided by 4: all parts have come on",
            ("distance *= 2", "distance += 1")),
    Mistake("changes_what_it_sends", "damage",
            "wait for its Work; two that wait before they receive are a deadlock: send", ("vector.clone()", "vector")),
    Mistake("counts_a_latency_for_each_worker", "wrong", "2 (N - 1) latencies are counted, one for each message; the",
            ("    return 2 * latency + 2 *", "    return 2 * (N - 1) * latency + 2 *")),
    Mistake("counts_a_server_of_four_as_one", "wrong", "you choose as if all but one rank were workers of four servers",
            ("2 * latency + 2 * max(N - 4, 4) * nbytes / 4 * 8 / bandwidth",
             "seconds_of_server(N, nbytes // 4, bandwidth, latency)")),
    Mistake("counts_a_server_of_four_by_its_workers", "wrong",
            "you choose as if only the card of a server of four were shared",
            ("max(N - 4, 4)", "(N - 4)")),
    Mistake("counts_all_ranks_in_turn", "wrong",
            "N messages are counted one after the other in each step; on a ring all",
            ("return 2 * (N - 1)", "return 2 * N * (N - 1)")),
    Mistake("counts_n_for_n_minus_1", "wrong",
            "2 N latencies are counted: in each round the chunk is there after N - 1",
            """def seconds_of_ring(N, nbytes, bandwidth, latency):
    return 2 * N * (latency + nbytes / N * 8 / bandwidth)
"""),
    Mistake("counts_one_round", "wrong", "N - 1 latencies are counted, and a ring goes round twice",
            """def seconds_of_ring(N, nbytes, bandwidth, latency):
    return (N - 1) * (latency + nbytes / N * 8 / bandwidth)
"""),
    Mistake("counts_the_latency_once", "wrong",
            "the latency is counted once; a rank sends a chunk when it has received",
            ("2 * (N - 1) * (latency + nbytes / N * 8 / bandwidth)",
             "latency + 2 * (N - 1) * nbytes / N * 8 / bandwidth")),
    Mistake("divides_in_each_round", "wrong",
            "rank 3) / 16: every rank is in it once, but divided by 16: divide by N once",
            ("vector.div_", "    vector.div_")),
    Mistake("forgets_to_divide", "wrong", "all_reduce: N = 2, 8 elements: rank 0 ends with the sum; expected the mean",
            ("vector.div_(N)", "return")),
    Mistake("goes_round_the_ring", "costly", "messages of a rank: 14; the best known needs 3, log2 N",
            """def all_reduce(transport, vector):
    from strategies.collectives import ring_all_reduce
    ring_all_reduce(vector, transport)
    vector.div_(transport.world_size)
"""),
    Mistake("ignores_compute", "wrong", "you choose as if computing took no time, or equally long in all three",
            ("compute / (N - 1) + seconds_of_server", "seconds_of_server"), ("compute / (N - 4) + 2", "2"),
            ("compute / N + seconds_of_ring", "seconds_of_ring")),
    Mistake("ignores_latency", "wrong", "somewhere; without latency a ring always is, but its 2 (N - 1)",
            """def choose(N, nbytes, bandwidth, latency, compute):
    steps = {
        "server": compute / (N - 1) + seconds_of_server(N, nbytes, bandwidth, 0.0),
        "4 servers": compute / (N - 4) + 2 * max(N - 4, 4) * nbytes / 4 * 8 / bandwidth,
        "ring": compute / N + seconds_of_ring(N, nbytes, bandwidth, 0.0),
    }
    return min(steps, key=steps.__getitem__)
"""),
    Mistake("returns_milliseconds", "wrong", "yours is 1,000 times as long in every cluster: return seconds",
            ("return 2 * latency + 2 * (N - 1) * nbytes * 8 / bandwidth",
             "return 1000 * (2 * latency + 2 * (N - 1) * nbytes * 8 / bandwidth)")),
    Mistake("sends_in_order", "wrong", "N vectors are counted, as if the server sent one x after the other; here all x",
            ("2 * latency + 2 * (N - 1) * nbytes * 8", "2 * latency + N * nbytes * 8")),
    Mistake("sends_on_to_the_next", "wrong", "all ranks hold the mean, but element ",
            ('peer = r ^ distance\n        transport.isend(vector.clone(), peer, f"distance {distance}")\n'
            '        with transport.recv(peer, f"distance {distance}") as received:',
             'transport.isend(vector.clone(), (r + distance) % N, f"distance {distance}")\n'
            '        with transport.recv((r - distance) % N, f"distance {distance}") as received:')),
    Mistake("sends_to_everyone", "costly", "yours is faster here, for a message costs its sender nothing but the time",
            """def all_reduce(transport, vector):
    from strategies.collectives import gather_and_add
    gather_and_add(vector, transport)
    vector.div_(transport.world_size)
"""),
    Mistake("sends_whole_vectors_round", "wrong",
            "whole vectors are counted, 2 (N - 1) of them; a message of a ring is", ("nbytes / N * 8", "nbytes * 8")),
    Mistake("shares_the_batch_over_all_ranks", "wrong", "equally long in all three: servers compute nothing, and fewer",
            ("compute / (N - 1) + seconds_of_server", "compute / N + seconds_of_server"),
            ("compute / (N - 4) + 2", "compute / N + 2")),
    Mistake("stays_with_one_peer", "wrong",
            "ends with (2 x rank 0 + 2 x rank 1) / 4, without rank 2, 3: after s rounds", ("^ distance", "^ 1")),
    Mistake("takes_bits_for_bytes", "wrong", "bits are taken for bytes: a byte has 8 bits",
            ("nbytes * 8 / bandwidth", "nbytes / bandwidth")),
]  # fmt: skip
