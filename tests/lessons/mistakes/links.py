"""Typical mistakes of lab 6."""

from tests.lessons.mistakes import Mistake

MISTAKES = [
    Mistake("always_takes_four_servers", "wrong", 45, "you chose '4 servers' for all 9 clusters, and each of the three",
            ("return min(steps, key=steps.__getitem__)", 'return "4 servers"')),
    Mistake("asks_its_neighbours", "wrong", 52,
            "rank 3) / 4; expected each rank once, divided by 4: all parts have come on",
            ("distance *= 2", "distance += 1")),
    Mistake("changes_what_it_sends", "damage", 52,
            "wait for its Work; two that wait before they receive are a deadlock: send", ("vector.clone()", "vector")),
    Mistake("counts_the_latency_once", "wrong", 37,
            "the latency is counted once; a rank sends a chunk when it has received",
            ("2 * (N - 1) * (latency + nbytes / N * 8 / bandwidth)",
             "latency + 2 * (N - 1) * nbytes / N * 8 / bandwidth")),
    Mistake("divides_in_each_round", "wrong", 52,
            "rank 3) / 16: every rank is in it once, but divided by 16: divide by N once",
            ("vector.div_", "    vector.div_")),
    Mistake("forgets_to_divide", "wrong", 52, "all_reduce: N = 2, 8 elements: rank 0 ends with the sum; expected the m",
            ("vector.div_(N)", "return")),
    Mistake("goes_round_the_ring", "costly", 70, "messages of a rank: 14; the best known needs 3, log2 N",
            """def all_reduce(transport, vector):
    from strategies.collectives import ring_all_reduce
    ring_all_reduce(vector, transport)
    vector.div_(transport.world_size)
"""),
    Mistake("ignores_compute", "wrong", 45, "you choose as if computing took no time, or equally long in all three",
            ("compute / (N - 1) + seconds_of_server", "seconds_of_server"), ("compute / (N - 4) + 2", "2"),
            ("compute / N + seconds_of_ring", "seconds_of_ring")),
    Mistake("ignores_latency", "wrong", 45, "somewhere; without latency a ring always is, but its 2 (N - 1)",
            ("seconds_of_server(N, nbytes, bandwidth, latency)", "seconds_of_server(N, nbytes, bandwidth, 0)"),
            ("seconds_of_ring(N, nbytes, bandwidth, latency)", "seconds_of_ring(N, nbytes, bandwidth, 0)"),
            ("2 * latency + 2 * max", "2 * max")),
    Mistake("returns_milliseconds", "wrong", 30, "yours is 1,000 times as long in every cluster: return seconds",
            ("return 2 * latency + 2 * (N - 1) * nbytes * 8 / bandwidth",
             "return 1000 * (2 * latency + 2 * (N - 1) * nbytes * 8 / bandwidth)")),
    Mistake("sends_on_to_the_next", "wrong", 52, "all ranks hold the mean, but element ",
            ('peer = r ^ distance\n        transport.isend(vector.clone(), peer, f"distance {distance}")\n'
            '        with transport.recv(peer, f"distance {distance}") as received:',
             'transport.isend(vector.clone(), (r + distance) % N, f"distance {distance}")\n'
            '        with transport.recv((r - distance) % N, f"distance {distance}") as received:')),
    Mistake("sends_to_everyone", "costly", 90, "yours is faster here, for a message costs its sender nothing but the t",
            """def all_reduce(transport, vector):
    from strategies.collectives import gather_and_add
    gather_and_add(vector, transport)
    vector.div_(transport.world_size)
"""),
    Mistake("stays_with_one_peer", "wrong", 52,
            "ends with (2 x rank 0 + 2 x rank 1) / 4, without rank 2, 3: after s rounds", ("^ distance", "^ 1")),
    Mistake("takes_bits_for_bytes", "wrong", 37, "bits are taken for bytes: a byte has 8 bits",
            ("nbytes * 8 / bandwidth", "nbytes / bandwidth")),
]  # fmt: skip
