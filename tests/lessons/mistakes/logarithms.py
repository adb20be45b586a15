"""Typical mistakes of lab 10."""

from tests.lessons.mistakes import Mistake

ISEND = 'sent = transport.isend(vector, partner, "doubling")'
RECV = 'transport.recv(partner, "doubling").copy_to(came)'
GET_BACK = '        transport.recv(r + 1, "unfold").copy_to(vector)\n'
PARTNER = "left[left.index(r) ^ distance]"
HALVE = "halves = torch.tensor_split(part, 2)"
ADD = "part.add_(received.vector)"
COPY = 'transport.recv(partner, "doubling").copy_to(theirs)'

MISTAKES = [
    Mistake("adds_before_it_is_read", "wrong", "",
            (ISEND, f'{ISEND}\n        with transport.recv(partner, "doubling") as received:\n'
                    "            vector.add_(received.vector)\n        sent.wait()"),
            (f"        {RECV}\n        sent.wait()\n        vector.add_(came)\n", "")),
    Mistake("stays_with_its_partner", "wrong", "", ("^ distance]", "^ 1]")),
    Mistake("takes_one_round_less", "wrong", "", ("while distance < p:", "while 2 * distance < p:")),
    Mistake("takes_one_round_more", "raised", "", ("while distance < p:", "while distance <= p:")),
    Mistake("waits_before_it_receives", "deadlock", "", (f"        {RECV}\n        sent.wait()\n", f"        sent.wait()\n        {RECV}\n")),
    Mistake("sends_to_the_right", "wrong", "",
            (PARTNER, "left[(left.index(r) + distance) % p]"),
            (RECV, 'transport.recv(left[(left.index(r) - distance) % p], "doubling").copy_to(came)')),
    Mistake("does_not_fold", "raised", "", ("p = 1 << (N.bit_length() - 1)", "p = N"), (PARTNER, "r ^ distance")),
    Mistake("counts_the_partner_among_all", "raised", "", (PARTNER, "r ^ distance")),
    Mistake("does_not_unfold", "wrong", "", (GET_BACK, ""), ('    if r < paired:\n        transport.isend(vector, r - 1, "unfold").wait()\n', "")),
    Mistake("adds_what_comes_back", "wrong", "", (GET_BACK, '        with transport.recv(r + 1, "unfold") as received:\n            vector.add_(received.vector)\n')),
    Mistake("divides", "wrong", "", ('        distance *= 2\n    if r < paired:\n', '        distance *= 2\n    vector.div_(N)\n    if r < paired:\n')),
    Mistake("returns_the_sum", "returned", "", ('        distance *= 2\n    if r < paired:\n', '        distance *= 2\n    return vector + 0\n    if r < paired:\n')),
    Mistake("keeps_the_same_half", "wrong", "", ("int(r & distance > 0)", "0")),
    Mistake("adds_to_the_other_half", "wrong", "", (ADD, "theirs.add_(received.vector)")),
    Mistake("halves_the_whole_vector_again", "wrong", "", (HALVE, "halves = torch.tensor_split(vector, 2)")),
    Mistake("adds_on_the_way_back", "wrong", "", (COPY, f'with transport.recv(partner, "doubling") as received:\n            theirs.add_(received.vector)')),
    Mistake("goes_back_in_the_same_order", "wrong", "", ("in reversed(back)", "in back")),
    Mistake("copies_over_its_own", "wrong", "", (COPY, 'transport.recv(partner, "doubling").copy_to(part)')),
    Mistake("does_not_go_back", "wrong", "", ("in reversed(back)", "in reversed(back[:0])")),
    Mistake("drops_the_odd_element", "wrong", "", (HALVE, "halves = part[: len(part) // 2], part[len(part) // 2 : len(part) // 2 * 2]")),
    Mistake("does_not_wait", "wrong", "", ("    for work in sent:\n        work.wait()\n", "")),
    Mistake("doubles_twice", "costly", "", """def halving_doubling(transport, vector):
    recursive_doubling(transport, vector)
"""),
    Mistake("halves_to_double", "costly", "", ("    p = 1 << (N.bit_length() - 1)\n", "    p = 1 << (N.bit_length() - 1)\n    if p == N:\n        return halving_doubling(transport, vector)\n")),
    Mistake("sends_in_turn", "costly", "", (ISEND, f"if r > partner:\n            {RECV}\n        {ISEND}"), (f"        {RECV}\n        sent.wait()", f"        if r < partner:\n            {RECV}\n        sent.wait()")),
    Mistake("is_a_ring", "costly", "", """def halving_doubling(transport, vector):
    from strategies.collectives import ring_all_reduce
    ring_all_reduce(vector, transport)
"""),
    Mistake("sends_all_and_keeps_half", "costly", "", ('isend(theirs, partner, "halving")', 'isend(before.clone(), partner, "halving")'), ("        part, theirs = halves", "        before = part\n        part, theirs = halves"), (ADD, "part.add_(torch.tensor_split(received.vector, 2)[mine])")),
    Mistake("makes_its_own_of_floats", "wrong", "", ("came, distance = torch.empty_like(vector), 1", "came, distance = torch.empty(len(vector)), 1")),
    Mistake("uses_what_it_has_released", "wrong", "", ("        with transport.recv(partner, \"halving\") as received:\n            part.add_(received.vector)", "        with transport.recv(partner, \"halving\") as received:\n            pass\n        part.add_(received.vector)")),
    Mistake("takes_a_round_alone", "raised", "", ("while distance < N:", "while not back or distance < N:")),
]  # fmt: skip
