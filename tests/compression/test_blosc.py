"""Blosc: what comes out is what went in, bit for bit; a damaged code is refused."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from compression.blosc import Blosc
from compression.layout import Layout
from records.errors import RunFailed, UsageError
from tests.compression.test_all_codecs import normal, started

OPTIONS = st.builds(Blosc, level=st.integers(0, 9), shuffle=st.sampled_from(["bit", "byte", "none"]))


def one_tensor(n: int) -> Layout:
    """The layout of a vector of n elements."""
    return Layout(("t",), ((n,),))


@settings(deadline=None, max_examples=40)
@given(
    codec=OPTIONS,
    vector=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays.arrays(
            dtype,
            st.integers(0, 300),
            elements=st.floats(allow_nan=False, allow_infinity=False, width=32 if dtype is np.float32 else 64),
        )
    ),
)
@example(Blosc(), np.array([-0.0, 0.0, 1e-45, -1e-45, 3.4e38] * 100, np.float32))
@example(Blosc(), np.array([-0.0, 0.0, 5e-324, -5e-324, 1.7e308] * 100, np.float64))
def test_every_finite_vector_comes_out_bit_for_bit(codec: Blosc, vector: np.ndarray) -> None:
    sent = torch.from_numpy(vector)
    sender = started(codec, one_tensor(len(sent)), sent.dtype)
    code = sender.encode(sent)
    assert code.data.nbytes <= sum(sender.count())
    decoded = started(Blosc(), one_tensor(len(sent)), sent.dtype).decode(code.data)
    assert decoded.numpy().tobytes() == vector.tobytes(), "the receiver's options do not matter"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**9), st.integers(0, 7), st.sampled_from(["bit", "byte", "none"]), st.binary(max_size=200))
def test_a_code_with_a_wrong_bit_and_what_is_none_are_refused(at: int, bit: int, shuffle: str, foreign: bytes) -> None:
    end = started(Blosc(shuffle=shuffle), one_tensor(1000))
    data = end.encode(normal(one_tensor(1000), 0).round()).data
    data[at % len(data)] ^= 1 << bit
    for wrong in (data, torch.tensor(list(foreign), dtype=torch.uint8)):
        with pytest.raises(RunFailed, match="damaged, or sent by another codec") as refused:
            end.decode(wrong)
        assert "\n" not in str(refused.value)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blosc2", None)
    with pytest.raises(UsageError, match="pip install blosc2"):
        Blosc().check()
