"""What a receiver applies is what the codec's plain program gives, on float64; see `tests/compression/plain`."""

import pytest
import torch

from gradwire.compression import CODECS, Codec
from gradwire.core.strategy.layout import Layout
from tests.compression.plain import PlainRun
from tests.compression.plain import __name__ as package
from tests.compression.test_all_codecs import normal, started
from tests.strategies.plain import plain_module

TENSORS = Layout(("w", "b", "s", "deep"), ((30, 20), (10,), (), (4, 3, 5, 5)))


def assert_plain(codec_class: type[Codec], scope: str) -> None:
    """What comes out of several codes is what its plain program gives, with some of its options; see PlainRun."""
    module = plain_module(codec_class, CODECS.get(codec_class.name) is codec_class, package)
    layout = TENSORS if scope == "tensor" else TENSORS.whole
    gradients = [normal(layout, step, torch.float64) for step in range(6)]
    run = PlainRun([layout.views(g) for g in gradients])
    for options in getattr(module, "OPTIONS", [{}]):
        codec = codec_class(**options)
        sender, receiver = (
            started(codec, TENSORS, torch.float64, scope=scope, seed=run.seed, rank=run.rank, workers=run.workers,
                    momentum=run.momentum, sends=sends)
            for sends in (True, False)
        )  # fmt: skip
        for step, expected in enumerate(module.plain_program(run, codec)):
            sender.epoch = step + 1
            received = receiver.decode(sender.encode(gradients[step]).data)
            plain = torch.cat([tensor.flatten() for tensor in expected])
            torch.testing.assert_close(received, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("scope", ["tensor", "vector"])
def test_a_receiver_applies_what_the_plain_program_gives(codec_class: type[Codec], scope: str) -> None:
    if not (codec_class.tensors_only and scope == "vector"):
        assert_plain(codec_class, scope)
