"""Every codec of the table keeps the law that it says; a codec that breaks its law is found."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from gradwire.compression.base import FEEDBACK, LOSSLESS, ROUNDED, UNBIASED, Codec, ErrorFeedback
from gradwire.core.strategy.layout import Layout
from tests.compression.test_all_codecs import KINDS_OF_SHAPES, MIXED, normal, started

LAYOUTS = [MIXED, Layout(tuple(map(str, range(len(KINDS_OF_SHAPES)))), tuple(KINDS_OF_SHAPES))]
WIDE = Layout(("w", "b"), ((60, 60), (9,)))
DTYPES = [torch.float32, torch.float64]


def keeps_what_it_does_not_send(codec: Codec, layout: Layout, scope: str) -> None:
    """And it sends something each time, so that what is kept does not grow for ever."""
    for beta in (0.0, 0.5, 1.0) if isinstance(codec, ErrorFeedback) else (1.0,):
        changed = dataclasses.replace(codec, error_decay=beta) if isinstance(codec, ErrorFeedback) else codec
        for scale in (1.0, 1e-8, 1e6):
            sender, receiver = (started(changed, layout, torch.float64, scope=scope) for _ in range(2))
            for step in range(4):
                before, vector = sender.state_dict()[codec.state[0]], normal(layout, step, torch.float64) * scale
                sent = receiver.decode(sender.encode(vector).data)
                kept = sender.state_dict()[codec.state[0]]
                torch.testing.assert_close(sent + kept, beta * before + vector, rtol=1e-12, atol=1e-12 * scale)
                if scale == 1.0:  # far smaller ones round to float16's zero
                    assert kept.norm() < (beta * before + vector).norm()


def has_the_vector_as_its_mean(codec: Codec, layout: Layout, scope: str) -> None:
    """Within some standard errors, of each element and of the mean over all; elements that seldom change get more."""
    end, many = started(codec, layout, torch.float64, scope=scope, seed=1), 100
    vector = normal(layout, 0, torch.float64).sign() * (1 + torch.arange(layout.n) % 7)
    errors = torch.stack([end.decode(end.encode(vector).data).clone() for _ in range(many)]) - vector
    spread = errors.std(0)
    assert (errors.mean(0).abs() <= 6 * (spread / many**0.5 + 4 * spread.max() / many)).all()
    shrunk = errors @ vector.sign() / layout.n
    assert shrunk.mean().abs() <= 5 * shrunk.std() / many**0.5


def gives_the_same_bits(codec: Codec, layout: Layout, scope: str) -> None:
    """Of both dtypes, minus zero and the smallest numbers among them."""
    for dtype in DTYPES:
        sender, receiver = (started(codec, layout, dtype, scope=scope) for _ in range(2))
        for step in range(3):
            vector = normal(layout, step, dtype)
            vector[::5], vector[1::5] = -0.0, torch.finfo(dtype).smallest_normal / 8
            assert receiver.decode(sender.encode(vector).data).numpy().tobytes() == vector.numpy().tobytes()


def gives_the_nearest_value(codec: Codec, layout: Layout, scope: str) -> None:
    """Of those that come out of many numbers between 1 and 2; an error is at most 1 % of the largest of them."""
    n = 2001
    for sign in (1, -1):
        end = started(codec, Layout(("t",), ((n,),)), torch.float64, scope=scope)
        vector = sign * torch.linspace(1, 2, n, dtype=torch.float64)
        decoded = end.decode(end.encode(vector).data)
        nearest = (vector.unsqueeze(1) - decoded.unique()).abs().amin(1)
        assert torch.equal((vector - decoded).abs(), nearest)
        assert nearest.max() <= 0.02
    end = started(codec, layout, torch.float64, scope=scope)
    vector = normal(layout, 0, torch.float64)
    torch.testing.assert_close(end.decode(end.encode(vector).data), vector, rtol=0.01, atol=0.01)


TESTS: dict[str, Callable[[Codec, Layout, str], None]] = {
    FEEDBACK: keeps_what_it_does_not_send,
    UNBIASED: has_the_vector_as_its_mean,
    LOSSLESS: gives_the_same_bits,
    ROUNDED: gives_the_nearest_value,
}


@pytest.mark.parametrize("scope", ["tensor", "vector"])
def test_it_keeps_its_law(instance: Codec, scope: str) -> None:
    for layout in [WIDE] if instance.law == UNBIASED else LAYOUTS:  # the law of means needs many elements
        TESTS[instance.law](instance, layout, scope)
