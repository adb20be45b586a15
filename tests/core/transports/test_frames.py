"""What arrives does not depend on how a pipe cuts the frames into pieces."""

import pickle
from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.transports.encoding import DTYPES
from gradwire.core.transports.frames import OBJECT, frame, vector_frame
from tests.core.transports.samples import pair
from tests.ranks import pattern

INT64 = st.integers(-(2**63), 2**63 - 1)
TAGS = st.sampled_from(["", "x", "é" * 500])
OBJECTS = st.one_of(st.none(), st.integers(), st.text(max_size=50), st.binary(max_size=500))
VECTORS = st.builds(pattern, st.integers(0, 40), st.sampled_from(DTYPES), st.integers(0, 100))


def encode(value: Any, tag: str, n: int) -> bytes:
    if isinstance(value, torch.Tensor):
        return vector_frame(tag, value, n)
    return frame(OBJECT, tag, b"" if value is None else pickle.dumps(value), n=n)


def same(message: Any, value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return message.tensor.dtype == value.dtype and torch.equal(message.tensor, value)
    return message.tensor is None and message.object == value


@settings(max_examples=30)
@given(
    messages=st.lists(st.tuples(st.one_of(OBJECTS, VECTORS), TAGS, INT64), max_size=15),
    cuts=st.lists(st.floats(0, 1), max_size=20),
)
def test_frames_arrive_whole_however_they_are_cut(messages: list[tuple[Any, str, int]], cuts: list[float]) -> None:
    data = b"".join(encode(*message) for message in messages)
    places = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    with pair() as (receiver, sender):
        for start, end in pairwise(places):
            sender._peers[0].write(data[start:end])
            receiver._progress(1, 0)
            sender._progress(0, 0)
        for value, tag, n in messages:
            message = receiver.recv(1, ("", "x", "é" * 500))
            assert (message.tag, message.n) == (tag, n)
            assert same(message, value)
