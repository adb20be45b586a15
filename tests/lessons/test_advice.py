"""What the check says first of a mistake that shows in several ways: the line that tells how to mend it."""

from pathlib import Path

import pytest

from lessons import check

RECEIVE = """        with transport.recv(worker, "gradient") as received:
            total.add_(received.vector)
"""
SEND_G = '    transport.isend(g, SERVER, "gradient")\n'
SEND_X = '        transport.isend(x, worker, "parameters")\n'
COPY_X = '    transport.recv(SERVER, "parameters").copy_to(x)\n'
FOR_EACH = "    for worker in transport.peers:\n"
UPDATE = "    update(total / len(transport.peers))\n"
NEVER_RECEIVES = "step 1: rank 1 ended its step without receiving the x that rank 0 sent it: work must receive"
NAN = "update was given NaN, which is what received.vector holds after its release"
OF_SERVER: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "never receives x": ([(COPY_X, "")], "unread", NEVER_RECEIVES),
    "never receives x, and is waited for": (
        [(COPY_X, ""), (SEND_X, SEND_X.replace(")\n", ").wait()\n"))], "unread", NEVER_RECEIVES,
    ),
    "receives from one": (
        [(FOR_EACH + RECEIVE, "    for worker in transport.peers[:1]:\n" + RECEIVE)], "unread",
        "step 1: rank 0 never received g of rank 2: receive from every rank of transport.peers",
    ),
    "sends g twice": (
        [(SEND_G, 2 * SEND_G)], "unread", "step 1: rank 1 sent rank 0 2 messages 'gradient'; the server received 1",
    ),
    "sends g to all": (
        [(SEND_G, FOR_EACH + SEND_G.replace("    tr", "        tr").replace("SERVER", "worker"))], "unread",
        "step 1: rank 1 sent g to rank 2, which never receives it: send it to rank 0 only",
    ),
    "answers each g": (
        [(RECEIVE, RECEIVE.replace("total.add_", "update") + SEND_X), (UPDATE + FOR_EACH + SEND_X, "")], "wrong",
        "step 1: the server made 2 updates; expected 1",
    ),
    "answers each g to all": (
        [(RECEIVE, RECEIVE.replace("total.add_", "update") +
          '        for peer in transport.peers:\n            transport.isend(x, peer, "parameters")\n'),
         (UPDATE + FOR_EACH + SEND_X, "")], "unread", "step 1: the server made 2 updates; expected 1",
    ),
    "updates what it has sent": (
        [(UPDATE + FOR_EACH + SEND_X, FOR_EACH + SEND_X + UPDATE)], "wrong",
        "step 1: rank 0 sent x and then updated it: send x after the update",
    ),
    "changes what it has sent": (
        [(SEND_X, SEND_X + "    x.zero_()\n")], "wrong", "rank 0 sent the new x, and then changed it",
    ),
    "waits for each": (
        [(SEND_X, SEND_X.replace(")\n", ").wait()\n"))], "costly",
        "rank 0 waits until rank 1 has read x before it sends x to rank 2",
    ),
    "sums into what it received": (
        [(RECEIVE, RECEIVE + "            received.vector.add_(1)\n")], "damage",
        "rank 0 wrote into received.vector, which is rank 1's g: write into a vector of your own",
    ),
    "uses what it has released": (
        [(RECEIVE, RECEIVE.replace("    total", "    pass\n        total"))], "update", NAN,
    ),
    "never releases": (
        [(RECEIVE, '        total.add_(transport.recv(worker, "gradient").vector)\n')], "unreleased",
        "step 1: rank 0 received g of rank 1 and never released it: use `with transport.recv(...) as received`",
    ),
    "takes what update returns": (
        [(UPDATE, "    x = " + UPDATE.lstrip())], "raised",
        "isend(tensor, dst, tag) was given None, which is what functions that work in place return",
    ),
    "swaps the arguments": (
        [("isend(x, worker,", "isend(worker, x,")], "raised", "isend(tensor, dst, tag): dst is a Tensor; expected",
    ),
}  # fmt: skip
ADD = """        with transport.recv(left, "share-reduce") as received:
            chunks[(r - s - 1) % N].add_(received.vector)
"""
OF_RING: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    "adds to what it sends": (
        [("chunks[(r - s - 1) % N].add_", "chunks[(r - s) % N].add_")], "wrong",
        "N = 3, step 1: rank 1 added what came in (chunk 0) to chunk 1, which it is just sending; expected: to chunk 0",
    ),
    "never releases": (
        [(ADD, '        chunks[(r - s - 1) % N].add_(transport.recv(left, "share-reduce").vector)\n')], "deadlock",
        "; rank 1 has received it, but not released it: use `with transport.recv(...) as received`, or copy_to",
    ),
    "uses what it has released": (
        [(ADD, ADD.replace("    chunks", "    pass\n        chunks"))], "wrong",
        "; NaN is what received.vector holds after its release",
    ),
    "takes N steps": (
        [("range(N - 1)", "range(N)")], "raised", "; N = 1: a rank alone has no neighbour, and takes N - 1 = 0 steps",
    ),
    "takes one step": (
        [(ADD, ADD + '        raise NotImplementedError("the rest")\n')], "hole",
        "the rest; the messages so far are right, but only 1 of each rank; share-reduce sends N - 1 = 2",
    ),
}  # fmt: skip
CASES = [
    (lab, name, *case)
    for lab, cases in (("param_server", OF_SERVER), ("ring", OF_RING))
    for name, case in cases.items()
]


@pytest.mark.parametrize(
    ("lab", "name", "changes", "kind", "text"), CASES, ids=[f"{lab}: {name}" for lab, name, *_ in CASES]
)
def test_a_mistake_is_told_by_how_to_mend_it(
    tmp_path: Path, lab: str, name: str, changes: list[tuple[str, str]], kind: str, text: str
) -> None:
    source = (check.SOLUTIONS / f"{lab}.py").read_text()
    for old, new in changes:
        assert old in source, f"{name} changes what the solution has"
        source = source.replace(old, new)
    (tmp_path / "mine.py").write_text(source)
    found = check.check_file(lab, str(tmp_path / "mine.py"))
    assert (found.kind, found.verdict) == (kind, found.verdict)
    assert text in found.verdict


def test_what_is_printed_is_cut_with_a_word(tmp_path: Path) -> None:
    source = (check.SOLUTIONS / "ring.py").read_text()
    (tmp_path / "mine.py").write_text(source.replace("    sent = []\n", '    sent = []\n    print("x" * 300)\n'))
    found = check.check_file("ring", str(tmp_path / "mine.py"))
    assert found.right
    assert found.printed.count("(and more; print less)") == 1
    assert found.printed.endswith("(and more; print less)\n")


@pytest.mark.slow
def test_what_the_lab_finds_on_real_processes_is_told_in_its_words(tmp_path: Path) -> None:
    source = (check.SOLUTIONS / "param_server.py").read_text()
    only_there = "    if type(transport).__name__ != 'LabTransport':\n        g.zero_()\n"
    (tmp_path / "mine.py").write_text(source.replace(COPY_X, COPY_X + only_there))
    found = check.check_file("param_server", str(tmp_path / "mine.py"))
    assert found.kind == "real"
    assert ", but on 3 real processes: rank" in found.verdict
    assert found.verdict.endswith("step 1: work changed g, which it is only to send")
