"""Messages from ANY are taken in the order in which they were sent, however they were read."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.transports.base import ANY, Message
from tests.core.transports.samples import world

TAGS = "a", "b"


SENDERS = st.integers(1, 3)
KINDS = st.sampled_from(["object", "vector", "slice"])
SEND = st.tuples(KINDS, SENDERS, st.sampled_from(TAGS))
TAKE = st.tuples(st.just("take"), st.just(ANY) | SENDERS, st.sampled_from([*TAGS, TAGS]))


@settings(max_examples=50)
@given(steps=st.lists(SEND | TAKE, max_size=30))
def test_whatever_is_sent_and_taken_in_between(steps: list[tuple[str, int, Any]]) -> None:
    def is_meant(sent: tuple[int, str, int], src: int, tags: Any) -> bool:
        return src in (ANY, sent[0]) and sent[1] in tags

    def what(message: Message | None) -> tuple[int, str, int] | None:
        if message is None:
            return None
        with message:
            return message.src, message.tag, message.n

    with world(4) as ranks:
        slices = [rank.allocate(5) for rank in ranks]
        pending: list[tuple[int, str, int]] = []  # rank, tag and number, in the order in which they were sent
        for number, (what_to_do, rank, tags) in enumerate(steps):
            if what_to_do != "take":
                values = {"object": None, "vector": torch.ones(5), "slice": slices[rank]}
                ranks[rank].isend(values[what_to_do], 0, tags, n=number)
                pending.append((rank, tags, number))
                continue
            first = next((sent for sent in pending if is_meant(sent, rank, tags)), None)
            assert what(ranks[0].recv(rank, tags, timeout=0)) == first
            if first is not None:
                pending.remove(first)
        for sent in pending:
            assert what(ranks[0].recv(ANY, TAGS)) == sent
