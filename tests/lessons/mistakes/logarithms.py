"""Typical mistakes of lab 10."""

from tests.lessons.mistakes import Mistake

P = "    p = 1 << (N.bit_length() - 1)\n"
PARTNER = "left[left.index(r) ^ distance]"
ISEND = 'sent = transport.isend(vector, partner, "doubling")'
RECV = 'transport.recv(partner, "doubling").copy_to(came)'
ADDED = f"        {RECV}\n        sent.wait()\n        vector.add_(came)\n"
LAST = "        distance *= 2\n    if r < paired:\n"
GET_BACK = '        transport.recv(r + 1, "unfold").copy_to(vector)\n'
GIVE_BACK = '    if r < paired:\n        transport.isend(vector, r - 1, "unfold").wait()\n'
HALVE = "halves = torch.tensor_split(part, 2)"
KEEP = "        part, theirs = halves"
HALF = '        with transport.recv(partner, "halving") as received:\n            part.add_(received.vector)'
COPY = 'transport.recv(partner, "doubling").copy_to(theirs)'

BEGIN = "    part, sent, back, distance = vector, [], [], 1\n"


def on_sets(code: str) -> tuple[str, str]:
    """Return the change by which halving-doubling does this, too, when it is given integers."""
    return BEGIN, f"    if vector.dtype == torch.int64:\n        {code}\n{BEGIN}"


MISTAKES = [
    Mistake("adds_before_it_is_read", "wrong", 45,
            "rank 0 may not have read, elements 0 to 7: the partner reads `vector` where it lies: copy what comes,",
            (ADDED, f"        with {RECV.removesuffix('.copy_to(came)')} as received:\n"
                    "            vector.add_(received.vector)\n        sent.wait()\n")),
    Mistake("stays_with_its_partner", "wrong", 45,
            "once, elements 0 to 11: in each round the partner is to hold the sum of ranks of which you have none",
            (PARTNER, "left[left.index(r) ^ 1]")),
    Mistake("takes_one_round_less", "wrong", 30, "after k rounds a rank has the sum of 2^k ranks: go on until 2^k is N",
            ("while distance < p:", "while 2 * distance < p:")),
    Mistake("takes_one_round_more", "raised", 30, "; if this is one more round: there are log2 N = 1",
            ("while distance < p:", "while distance <= p:")),
    Mistake("waits_before_it_receives", "deadlock", 30, "; both of a pair wait for the other to read: isend, recv, and",
            (f"        {RECV}\n        sent.wait()\n", f"        sent.wait()\n        {RECV}\n")),
    Mistake("receives_before_it_sends", "deadlock", 30, "; nothing is on its way: isend first, and then recv",
            (ADDED, "        sent.wait()\n        vector.add_(came)\n"), (ISEND, f"{RECV}\n        {ISEND}")),
    Mistake("exchanges_in_a_ring", "deadlock", 45, "; a pair exchanges: receive from whom you send to",
            (PARTNER, "left[(left.index(r) + distance) % p]")),
    Mistake("sends_to_the_right", "wrong", 45, "bits on rank 1 than on rank 0: let both of a pair add the same two sum",
            (PARTNER, "left[(left.index(r) + distance) % p]"),
            (RECV, 'transport.recv(left[(left.index(r) - distance) % p], "doubling").copy_to(came)')),
    Mistake("does_not_fold", "raised", 45, "; N is no power of two: before the rounds the first 2 (N - p) ranks pair u",
            (P, "    p = N\n"), (PARTNER, "r ^ distance")),
    Mistake("counts_the_partner_among_all", "raised", 45, "; of each pair only one takes part in the rounds: count "
            "partners among the p ranks that are left", (PARTNER, "r ^ distance")),
    Mistake("does_not_unfold", "wrong", 45, "who has given its vector away is to get the sum when all rounds are done",
            (GET_BACK, ""), (GIVE_BACK, "")),
    Mistake("adds_what_comes_back", "wrong", 45, "what comes back at the end is the sum of all, your part in it: copy",
            (GET_BACK, '        with transport.recv(r + 1, "unfold") as received:\n'
                       "            vector.add_(received.vector)\n")),
    Mistake("divides", "wrong", 45, "rank 0 ends with the mean; expected the sum: do not divide",
            (LAST, LAST.replace("    if", "    vector.div_(N)\n    if"))),
    Mistake("returns_the_sum", "returned", 30, "recursive_doubling returned a tensor; write the sum into `vector`, in",
            (LAST, LAST.replace("    if", "    return vector + 0\n    if"))),
    Mistake("makes_a_vector_of_floats", "wrong", 45, ": it is given integers, too: make vectors of your own by torch.e",
            ("came, distance = torch.empty_like(vector), 1", "came, distance = torch.empty(len(vector)), 1")),
    Mistake("halves_to_double", "costly", 92, "parts of the vector are sent: with whole ones log2 N rounds do; rounds,",
            (P, f"{P}    if p == N:\n        return halving_doubling(transport, vector)\n")),
    Mistake("sends_in_turn", "costly", 84, "one of a pair waits for the other's message before it sends its own: isend",
            (ISEND, f"if r > partner:\n            {RECV}\n        {ISEND}"),
            (ADDED, ADDED.replace(RECV, f"if r < partner:\n            {RECV}"))),
    Mistake("keeps_the_same_half", "wrong", 30,
            "other elements, elements 0 to 3: one of a pair keeps the first half, the other the second",
            ("int(r & distance > 0)", "0")),
    Mistake("adds_to_the_other_half", "wrong", 45, "send the half that you do not keep, and add to the half that you k",
            (HALF, HALF.replace("part.add_", "theirs.add_"))),
    Mistake("halves_the_whole_vector_again", "wrong", 45,
            "to 5: in round k the partner is r ^ 2^k, and you halve the half that you kept in round k - 1",
            (HALVE, "halves = torch.tensor_split(vector, 2)")),
    Mistake("does_not_go_back", "wrong", 45, "now every rank has the sum of its part: go back the same way, so that al",
            ("in reversed(back)", "in back[:0]")),
    Mistake("adds_on_the_way_back", "wrong", 45,
            "more than once, elements 4 to 7: on the way back what comes is a finished sum: copy it, do not add",
            (COPY, 'with transport.recv(partner, "doubling") as received:\n            theirs.add_(received.vector)')),
    Mistake("copies_over_its_own", "wrong", 30, "on the way back send the half that you have summed; what comes goes w",
            (COPY, COPY.replace("theirs", "part"))),
    Mistake("goes_back_in_the_same_order", "wrong", 45, "on the way back the last partner comes first: each half retur",
            ("in reversed(back)", "in back")),
    Mistake("drops_the_odd_element", "wrong", 45, "N does not divide the length: the halves differ by one element;",
            (HALVE, "h = len(part) // 2\n        halves = part[:h], part[h : 2 * h]")),
    Mistake("does_not_wait", "wrong", 45, "returns before rank 1 has read what it sent in round 2: wait for all Works",
            ("    for work in sent:\n        work.wait()\n", "")),
    Mistake("uses_what_it_has_released", "wrong", 30,
            "rank 0's contribution, elements 4 to 7; NaN is what received.vector holds after its release",
            (HALF, HALF.replace("            part", "            pass\n        part"))),
    Mistake("takes_a_round_alone", "raised", 45, "; N = 1: a rank alone has no partner, and log2 1 = 0 rounds",
            ("while distance < N:", "while not back or distance < N:")),
    Mistake("doubles_twice", "costly", 84, "whole vectors are exchanged: only that half is of use which the partner ke",
            """def halving_doubling(transport, vector):
    recursive_doubling(transport, vector)
"""),
    Mistake("sends_all_and_keeps_half", "costly", 84, "a rank sends more than half of what both of a pair still sum; b",
            (KEEP, f"        before = part.clone()\n{KEEP}"),
            ('isend(theirs, partner, "h', 'isend(before, partner, "h'),
            (HALF, HALF.replace("received.vector", "torch.tensor_split(received.vector, 2)[mine]"))),
    Mistake("is_a_ring", "costly", 84, "are these the N - 1 rounds of a ring, twice? Exchange with partners further an",
            """def halving_doubling(transport, vector):
    from strategies.collectives import ring_all_reduce

    ring_all_reduce(vector, transport)
"""),
    # On sets only.
    Mistake("clones_the_transport", "wrong", 45, "length 8: rank 0, round 1: AttributeError: ",
            on_sets("transport.clone()")),
    Mistake("exits", "wrong", 45, "halving_doubling: N = 2, length 8, on vectors of integers: SystemExit",
            on_sets("raise SystemExit")),
    Mistake("raises", "wrong", 45, "length 8: rank 0, round 1: ValueError: not these",
            on_sets("raise ValueError('not these')")),
    Mistake("waits_for_ever", "wrong", 45, "rank 0, round 1: waits for 'x' of rank 1, which never comes",
            on_sets("transport.recv(1 - r, 'x')")),
]  # fmt: skip
