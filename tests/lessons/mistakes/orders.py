"""Typical mistakes of lab 11."""

from tests.lessons.mistakes import Mistake

HOLDS = "def holds(happened, s):\n    "
LATE = 'elif (what == "applied") != (version - read[k] <= s):'
BOUND = "elif version - read[k] <= s:"
BEGIN = "version, read, present = 0, dict[int, int](), "
READS = "                read[k] = version\n"
MAKES = "                version += 1\n"
UPDATE = "                update(message.vector)\n"
APPLIED, DROPPED = (f'                note("{what}", k)\n' for what in ("applied", "dropped"))

MISTAKES = [
    Mistake("holds_always", "wrong", 0, "it is True of whatever happens, so it finds nothin", HOLDS + "return True\n"),
    Mistake("holds_never", "wrong", 0, "holds([], 0) is False, though nothing in it is wro", HOLDS + "return False\n"),
    Mistake("refuses_drops", "wrong", 10, "('dropped', 2)], 0) is False, though nothing in it is wrong: what is more t",
            (LATE, 'elif what == "dropped" or version - read[k] > s:')),
    Mistake("lets_drop_everything", "wrong", 10, "a server that drops everything would pass: say also what it may not",
            (LATE, 'elif what == "applied" and version - read[k] > s:')),
    Mistake("makes_the_mistake_of_the_server", "wrong", 10,
            "0) is True, though the gradient of rank 2, computed on version 0, was applied at version 1: 1 late, "
            "and the bound is 0; it makes the mistake of the server: keep for each worker which version",
            ("version, read = 0, dict[int, int]()", "version = read = 0"),
            ("read[k] = version\n        el", "read = version\n        el"), (LATE, LATE.replace("[k]", ""))),
    Mistake("refuses_what_is_at_the_bound", "wrong", 0, "holds([('sent', 1), ('applied', 1)], 0) is False, though not",
            (LATE, LATE.replace("<=", "<"))),
    Mistake("counts_drops_in_holds", "wrong", 10, "('dropped', 2), ('applied', 1)], 0) is False, though nothing in it",
            ('version += what == "applied"', 'version += what != "sent"')),
    Mistake("returns_nothing", "returned", 0, "holds returned nothing; expected True or Fal", HOLDS + "return None\n"),
    Mistake("mends_nothing", "orders", 45,
            "not so: your_holds: the gradient of rank 2, computed on version 0, was applied at version 1: 1 late",
            (BEGIN, "version, read, present = 0, 0, "), (READS, READS.replace("[k]", "")),
            (BOUND, BOUND.replace("[k]", ""))),
    Mistake("drops_at_the_bound", "wrong", 45,
            "the gradient of rank 1, computed on version 0, was dropped at version 0: 0 late, and the bound is 0",
            (BOUND, BOUND.replace("<=", "<"))),
    Mistake("counts_drops", "orders", 45, "not so: your_holds: the gradient of rank 1, computed on version 1, was drop",
            (DROPPED, DROPPED + MAKES)),
    Mistake("keeps_for_two_workers", "orders", 45, "your_holds: the gradient of rank 1, computed on version 0, was app",
            (READS, READS.replace("k]", "k % 2]")), (BOUND, BOUND.replace("k]", "k % 2]"))),
    Mistake("does_not_note_drops", "orders", 45, "note('sent', 2): of rank 2 comes 'applied' or 'dropped' next, after",
            (DROPPED, "                pass\n")),
    Mistake("notes_twice", "note", 30, "comes 'sent' next, after [", (APPLIED, 2 * APPLIED)),
    Mistake("applies_twice", "wrong", 30, "was sent something else than x with one update for each gradient noted as",
            (UPDATE, 2 * UPDATE)),
    Mistake("serves_one_at_a_time", "costly", 87, "right, but not the best. seconds of the fastest worker: ", """
def serve(transport, x, update, note, s):
    fetched, present = [], len(transport.peers)
    while present:
        with transport.recv(ANY, ("fetch", "gradient", "goodbye")) as message:
            if message.tag == "gradient":
                update(message.vector)
                note("applied", fetched.pop(0))
            elif message.tag == "fetch":
                fetched.append(message.src)
            present -= message.tag == "goodbye"
        if fetched and message.tag != "goodbye" and (len(fetched) == 1 or message.tag == "gradient"):
            transport.isend(x.clone(), fetched[0], "parameters")
            note("sent", fetched[0])
"""),
]  # fmt: skip
