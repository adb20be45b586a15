"""Codecs that send some elements: what is sent and what is kept are together what came in, bit for bit."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.compression import DGC, Codec, Layout, RandomK, TopK
from gradwire.compression.sparse import share_of
from gradwire.core.records.errors import RunFailed
from tests.compression import test_all_codecs as every

SHAPES = ((), (3, 4), (0,), (1,), (7, 1, 2), (29,))
LAYOUT = Layout(tuple(f"layer{i}.weight" for i in range(len(SHAPES))), SHAPES)

scopes, dtypes = every.SCOPES, every.DTYPES
densities = st.sampled_from([1e-9, 0.01, 0.1, 0.3, 0.5, 0.999, 1.0])
seeds = st.integers(0, 999)


def started(codec: Codec, dtype: torch.dtype = torch.float32, layout: Layout = LAYOUT, **setting: Any) -> Any:
    return every.started(codec, layout, dtype, **setting)


def vectors(kind: str, seed: int, dtype: torch.dtype, n: int = LAYOUT.n, steps: int = 5) -> list[torch.Tensor]:
    """Return gradients, of small whole numbers if sums of them should be exact."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** torch.arange(n).fmod(15).sub(9)
    made = {
        "whole": lambda: torch.randint(-9, 10, (n,), generator=generator),
        "equal": lambda: torch.full((n,), -3.0),
        "zeros": lambda: torch.zeros(n),
        "normal": lambda: torch.randn(n, generator=generator, dtype=torch.float64),
        "wide": lambda: torch.randn(n, generator=generator, dtype=torch.float64) * scales,
    }
    return [made[kind]().to(dtype) for _ in range(steps)]


def share(n: int, density: float) -> int:
    return max(1, math.floor(n * density)) if n else 0


def parts(scope: str) -> list[slice]:
    return list(LAYOUT.slices) if scope == "tensor" else [slice(0, LAYOUT.n)]


# What is sent


@settings(max_examples=15)
@given(scopes, densities, dtypes, seeds)
def test_random_elements_are_the_same_on_all_ranks_and_others_for_each_vector(
    scope: str, density: float, dtype: torch.dtype, seed: int
) -> None:
    ranks = [started(RandomK(density=density), dtype, scope=scope, seed=seed, rank=rank) for rank in range(2)]
    receiver = started(RandomK(density=density), dtype, scope=scope, seed=seed, rank=7)
    kept = [torch.zeros(LAYOUT.n, dtype=dtype)] * 2
    for gs in zip(*(vectors("whole", seed + rank, dtype) for rank in range(2)), strict=True):
        codes = [codec.encode(g) for codec, g in zip(ranks, gs, strict=True)]
        total = receiver.decode(codes[0].data + codes[1].data)
        assert [code.data.dtype for code in codes] == [dtype] * 2
        chosen = torch.zeros(LAYOUT.n, dtype=torch.bool).index_fill_(0, ranks[0].latest[1], True)
        for part in parts(scope):
            assert int(chosen[part].sum()) == share(part.stop - part.start, density)
        v = [r + g for r, g in zip(kept, gs, strict=True)]
        kept = [codec.r.clone() for codec in ranks]
        assert torch.equal(total, (v[0] + v[1]).where(chosen, torch.zeros_like(total)))
        assert all(torch.equal(r, x.where(~chosen, torch.zeros_like(x))) for r, x in zip(kept, v, strict=True))


# Deep Gradient Compression


@pytest.mark.parametrize(
    ("epochs", "density", "expected"),
    [
        (4, 0.001, [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001]),
        (0, 0.001, [0.001, 0.001]),
        (8, 0.001, [0.25, 0.25, 0.0625, 0.0625, 0.015625, 0.015625, 0.004, 0.004, 0.001]),
    ],
)
def test_dgc_warms_up(epochs: int, density: float, expected: list[float]) -> None:
    layout = Layout(("x", "y"), ((3000,), (500,)))
    codec = started(DGC(density=density, warmup_epochs=epochs), layout=layout)
    receiver = started(DGC(density=density, warmup_epochs=epochs), layout=layout)
    g = torch.randn(layout.n, generator=torch.Generator().manual_seed(0))
    for epoch, R in enumerate(expected, start=1):
        codec.epoch = epoch
        code = codec.encode(g)
        k = share(3000, R) + share(500, R)
        assert code.data.nbytes == k * 8
        assert codec.count() == (code.values, code.indices, 0)
        assert receiver.decode(code.data).count_nonzero() == k, "the receiver is not told which epoch it is"
        if epoch > epochs:
            assert codec.count() == Codec.count(codec), "the formulas are of the time after the warm-up"


def test_dgc_clips_the_gradient_to_the_share_of_one_worker() -> None:
    g = torch.zeros(LAYOUT.n)
    g[:2] = torch.tensor([3.0, 4.0])

    def sent(clip: float, workers: int) -> list[float]:
        codec = started(DGC(density=1.0, local_clip=clip), workers=workers)
        return codec.decode(codec.encode(g).data)[:2].tolist()

    assert sent(0.0, 4) == [3, 4]
    assert sent(10.0, 4) == [3, 4], "5 is not more than 10 / sqrt(4)"
    assert sent(5.0, 4) == pytest.approx([1.5, 2])
    assert sent(5.0, 1) == [3, 4]


# What is too large


@pytest.mark.parametrize(("kind", "half"), [(TopK, True), (RandomK, False), (DGC, False)])
def test_a_sum_above_the_largest_float_is_not_sent(kind: Any, half: bool) -> None:
    """Every gradient is finite; what is kept of the smaller ones plus the next is not."""
    options: dict[str, Any] = {"half_values": True} if half else {}
    dtype, layout = torch.float32, Layout(("first", "second"), ((1,), (8,)))
    codec = started(kind(density=0.1, **options), dtype, layout=layout)
    g = torch.tensor([0.0, *[0.6 * torch.finfo(dtype).max] * 8], dtype=dtype)
    message = r"^the gradient of second plus what was kept of those before it is above the largest float\d\d; take a"

    def send() -> None:
        for _ in range(50):
            assert codec.decode(codec.encode(g).data).isfinite().all()

    with pytest.raises(RunFailed, match=message):
        send()


# Formulas and lengths


@pytest.mark.parametrize("kind", [TopK, DGC])
def test_with_a_sampled_threshold_the_length_is_known_only_about(kind: Any) -> None:
    codec = kind(density=0.01, sampled=True)
    assert (codec.exact_size, codec.on_meta) == (False, False)
    layout = Layout(("x", "y"), ((1_100_000,), (10,)))
    sender, receiver = (started(kind(density=0.01, sampled=True), layout=layout) for _ in range(2))
    sender.epoch = 9
    g = torch.randn(layout.n, generator=torch.Generator().manual_seed(0))
    code = sender.encode(g)
    decoded = receiver.decode(code.data)
    assert torch.equal(decoded + (sender.v if kind is DGC else sender.r), g), "what is sent and what is kept"
    sent = int(decoded.count_nonzero())
    assert code.data.nbytes == sent * 8
    assert 5501 <= sent <= 22001
    assert sent != 11001
    for wrong in (code.data[:8000], torch.cat([code.data] * (3 if kind is TopK else 200))):
        with pytest.raises(RunFailed, match="bytes came"):
            receiver.decode(wrong)


@pytest.mark.parametrize(("kind", "half", "index"), [(TopK, False, -1), (DGC, True, LAYOUT.n)])
def test_an_index_outside_of_the_vector_is_refused(kind: Any, half: bool, index: int) -> None:
    codec = started(kind(density=0.2, half_values=half))
    data = codec.encode(torch.arange(float(LAYOUT.n))).data
    n = len(data) // (6 if half else 8)
    where = slice(0, 4) if half else slice(4 * n, 4 * n + 4)  # indices are in front of what is shorter
    data[where] = torch.tensor([index], dtype=torch.int32).view(torch.uint8)
    with pytest.raises(RunFailed, match=f"^a code has the index {index}, and the vector has {LAYOUT.n} elements"):
        codec.decode(data)


def test_a_share_is_counted_as_it_is_written() -> None:
    """0.29 of 100 is 29, though 100 * 0.29 is a little less in binary."""
    assert share_of(100, 0.29) == 29
