"""What every codec does: its bytes, what it refuses, how it continues from a state. Those that round, and Blosc."""

import dataclasses
import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compression import CODECS, DGC, QSGD, BFloat16, Blosc, Float16, PowerSGD, RandomK, Sign, TopK
from gradwire.compression.base import Codec, Setting
from gradwire.core.records.errors import RunFailed, UsageError
from gradwire.core.records.options import check_limits
from gradwire.core.strategy.layout import Layout

KINDS_OF_SHAPES: list[tuple[int, ...]] = [
    (), (1,), (0,), (3,), (8,), (17,), (1, 9), (6, 1), (4, 5), (0, 4), (12, 10), (30, 4), (5, 3, 2, 2)
]  # fmt: skip
LAYOUTS = st.lists(st.sampled_from(KINDS_OF_SHAPES), max_size=5).map(
    lambda shapes: Layout(tuple(f"t{i}" for i in range(len(shapes))), tuple(shapes))
)
INSTANCES: list[Codec] = [
    *(kind() for kind in CODECS.values()), QSGD(levels=1), QSGD(levels=7, bucket=3), QSGD(levels=32767),
    PowerSGD(rank=1), PowerSGD(rank=5, warm_start=False), RandomK(density=0.2), TopK(density=0.2),
    TopK(density=0.3, half_values=True), DGC(density=0.2), DGC(density=0.3, half_values=True),
]  # fmt: skip
SCOPES = st.sampled_from(["tensor", "vector"])
DTYPES = st.sampled_from([torch.float32, torch.float64])
MIXED = Layout(("w", "none", "b", "s", "deep"), ((30, 20), (0,), (10,), (), (4, 3, 5, 5)))


def check(codec: Codec) -> None:
    check_limits(codec)
    codec.check()


def started(codec: Codec, layout: Layout, dtype: torch.dtype = torch.float32, device: str = "cpu", **told: Any) -> Any:
    """Return a new end of the codec."""
    codec = dataclasses.replace(codec)
    check(codec)
    codec.start(layout, torch.empty(0, dtype=dtype, device=device), Setting(**told))
    return codec


def normal(layout: Layout, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a random vector, of elements around 1."""
    return torch.randn(layout.n, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Every codec


@settings(max_examples=8)
@given(layout=LAYOUTS, scope=SCOPES, dtype=DTYPES, seed=st.integers(0, 2**63 - 1))
def test_the_formulas_give_the_bytes_and_a_vector_comes_out(
    instance: Codec, layout: Layout, scope: str, dtype: torch.dtype, seed: int
) -> None:
    sender = started(instance, layout, dtype, scope=scope, seed=seed)
    receiver = started(instance, layout, dtype, scope=scope, seed=seed + 1, rank=3)
    without_values = started(instance, layout, dtype, "meta", scope=scope) if instance.on_meta else None
    for step in range(2):
        vector = normal(layout, step, dtype)
        given_to_it = vector.clone()
        code = sender.encode(vector)
        assert torch.equal(vector, given_to_it), "its input is not changed"
        assert code.data.dim() == 1
        assert code.data.is_contiguous()
        if instance.exact_size:
            assert (code.values, code.indices, code.headers) == sender.count()
        else:
            assert code.data.nbytes <= sum(sender.count())
        decoded = receiver.decode(code.data)
        assert (decoded.shape, decoded.dtype) == (vector.shape, dtype)
        if without_values:
            meta = without_values.encode(torch.empty(layout.n, dtype=dtype, device="meta"))
            assert meta.data.is_meta
            assert (len(meta.data), meta.data.dtype) == (len(code.data), code.data.dtype)
            assert (meta.values, meta.indices, meta.headers) == (code.values, code.indices, code.headers)
            decoded_meta = without_values.decode(meta.data)
            assert (decoded_meta.is_meta, len(decoded_meta)) == (True, layout.n)
        if isinstance(instance, RandomK):  # which draws other elements for the next code
            continue
        out = torch.full_like(vector, math.nan)
        assert receiver.decode(code.data, out) is out
        assert torch.equal(out, decoded)
        assert torch.equal(receiver.decode(code.data), decoded), "decoding changes nothing"


@pytest.mark.parametrize("scope", ["tensor", "vector"])
def test_what_is_not_finite_is_refused_and_nothing_of_it_is_kept(checking: Codec, scope: str) -> None:
    end, other = started(checking, MIXED, scope=scope), started(checking, MIXED, scope=scope)
    for wrong in (math.nan, math.inf, -math.inf):
        vector = normal(MIXED, 0)
        vector[MIXED.slices[2].start + 4] = wrong
        with pytest.raises(RunFailed, match=rf"^.*gradient of b has the value {wrong}.*\Z"):
            end.encode(vector)
    after, expected = end.encode(normal(MIXED, 1)), other.encode(normal(MIXED, 1))
    assert torch.equal(after.data, expected.data)


@pytest.mark.parametrize("scope", ["tensor", "vector"])
def test_a_code_of_a_wrong_length_is_refused_in_one_line(instance: Codec, scope: str) -> None:
    end = started(instance, MIXED, scope=scope)
    raw = end.encode(normal(MIXED, 0)).data.view(torch.uint8)
    for wrong in (raw[:-8], raw[:0], torch.cat([raw, raw[:8]]), raw[:3], torch.cat([raw, raw])):
        with pytest.raises(RunFailed, match=rf"^.*a code of {len(wrong)} bytes.*\Z"):
            end.decode(wrong)


@pytest.mark.parametrize("scope", ["tensor", "vector"])
def test_from_a_saved_state_it_continues_bit_for_bit(instance: Codec, scope: str) -> None:
    """And it leaves the random numbers of the program alone."""
    random = torch.get_rng_state()
    codec, other = started(instance, MIXED, scope=scope, seed=5), started(instance, MIXED, scope=scope, seed=5)
    for step in range(3):
        codec.encode(normal(MIXED, step))
    state = codec.state_dict()
    expected = [codec.encode(normal(MIXED, step)).data.clone() for step in range(3, 6)]
    assert torch.equal(torch.get_rng_state(), random)
    torch.rand(3)
    other.load_state_dict(state)
    assert all(torch.equal(other.encode(normal(MIXED, step)).data, expected[step - 3]) for step in range(3, 6))
    third = started(instance, MIXED, scope=scope, seed=5)
    third.load_state_dict(state)
    assert torch.equal(third.encode(normal(MIXED, 3)).data, expected[0]), "who loaded a state does not write into it"


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Blosc(level=10), "--level 10"), (Blosc(level=-1), "--level -1"), (Blosc(shuffle="x"), "bit"),
        (PowerSGD(rank=0), "--rank 0"), (QSGD(levels=0), "--levels 0"), (QSGD(levels=32768), "--levels"),
        (QSGD(bucket=0), "--bucket"), (DGC(warmup_epochs=-1), "--warmup_epochs"),
        (DGC(local_clip=-1.0), "--local_clip"),
        *((kind(density=density), f"^--density {density}: must be above 0 and at most 1")
          for kind in (TopK, RandomK, DGC) for density in (0.0, -1.0, 1.1, math.nan)),
        *((kind(error_decay=beta), f"^--error_decay {beta}: must be at {'most 1' if beta > 1 else 'least 0'}")
          for kind in (TopK, RandomK, Sign, PowerSGD) for beta in (-0.1, 1.1, math.nan)),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused(codec: Codec, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(codec)


# Those whose codes can be added


def test_what_is_too_large_for_half_precision_is_refused() -> None:
    vector = normal(MIXED, 0)
    vector[MIXED.slices[4].start] = 65519.0  # rounds to 65504
    started(Float16(), MIXED).encode(vector)
    vector[MIXED.slices[4].start] = -65520.0
    with pytest.raises(RunFailed, match=r"gradient of deep has the value -inf.*--lr.*--clip_norm"):
        started(Float16(), MIXED).encode(vector)
    started(BFloat16(), MIXED).encode(vector)
    vector[MIXED.slices[4].start] = torch.finfo(torch.float32).max
    with pytest.raises(RunFailed, match=r"gradient of deep has the value inf"):
        started(BFloat16(), MIXED).encode(vector)


# Blosc


@settings(max_examples=40)
@given(st.integers(0, 10**9), st.integers(0, 7), st.sampled_from(["bit", "byte", "none"]), st.binary(max_size=200))
def test_blosc_refuses_a_wrong_bit_and_what_is_no_code(at: int, bit: int, shuffle: str, foreign: bytes) -> None:
    end = started(Blosc(shuffle=shuffle), MIXED)
    data = end.encode(normal(MIXED, 0).round()).data
    data[at % len(data)] ^= 1 << bit
    for wrong in (data, torch.tensor(list(foreign), dtype=torch.uint8)):
        with pytest.raises(RunFailed, match=r"^.*damaged, or sent by another codec.*\Z"):
            end.decode(wrong)


def test_without_the_library_of_blosc_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blosc2", None)
    with pytest.raises(UsageError, match="pip install blosc2"):
        Blosc().check()
