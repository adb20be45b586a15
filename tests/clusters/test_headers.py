"""Headers: what goes in comes out, always in as many bytes; what is no header is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.clusters.headers import SIZE, TAG_BYTES, Header, Kind, pack, unpack
from gradwire.core.transports.encoding import DTYPES

seconds = st.floats(allow_nan=False)
tags = st.text(max_size=TAG_BYTES).filter(lambda tag: len(tag.encode()) <= TAG_BYTES)
headers = st.builds(
    Header, st.sampled_from(Kind), tags, st.sampled_from(DTYPES), st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1), seconds, seconds,
)  # fmt: skip


@given(headers)
def test_a_header_arrives_as_it_was(header: Header) -> None:
    raw = pack(header)
    assert len(raw) == SIZE
    for arrived in (raw, bytearray(raw), memoryview(raw)):
        assert unpack(arrived) == header
    assert unpack(raw).nbytes == header.numel * torch.empty(0, dtype=header.dtype).element_size()


def test_a_tag_may_fill_its_place_and_not_more() -> None:
    fits = "é" * (TAG_BYTES // 2)
    assert unpack(pack(Header(Kind.OBJECT, fits))).tag == fits
    with pytest.raises(ValueError, match=rf"the tag 'éé+'\.\.\. is too long: {TAG_BYTES + 2} bytes, and at most"):
        pack(Header(Kind.OBJECT, fits + "é"))


def test_a_dtype_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match=r"torch\.quint8 cannot be sent"):
        pack(Header(Kind.TENSOR, "x", torch.quint8))


@pytest.mark.parametrize(
    ("place", "changed", "said"),
    [
        (0, b"GET ", "begins with"), (4, b"\2", "version 2 instead of 1"), (5, b"\11", "kind 9"),
        (6, b"\143", "dtype 99"), (7, b"\377", "a tag of 255 bytes"), (SIZE - TAG_BYTES, b"\377", "utf-8"),
        (SIZE, b"x", f"{SIZE + 1} bytes instead of {SIZE}"),
    ],
)  # fmt: skip
def test_what_is_no_header_is_newer_or_damaged_is_refused(place: int, changed: bytes, said: str) -> None:
    raw = bytearray(pack(Header(Kind.TENSOR, "x", torch.float32, 3)))
    raw[place : place + len(changed)] = changed
    with pytest.raises(ValueError, match=said):
        unpack(raw)
    with pytest.raises(ValueError, match=f"{SIZE - 1} bytes instead of {SIZE}"):
        unpack(bytes(SIZE - 1))
