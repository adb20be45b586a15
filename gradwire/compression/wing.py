"""What codecs add to a run: --codec, and its options."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gradwire.compression import CODECS, Codec, Layout, NoCodec, Setting
from gradwire.core.launchers import Launcher
from gradwire.core.records.errors import UsageError, one_of
from gradwire.core.strategy.traits import Coded
from gradwire.core.training.options import CHOICE, Choice, Panel
from gradwire.core.training.wing import Wing

if TYPE_CHECKING:
    from gradwire.compression.coding import CodecFactory

AFTER_WARM_UP = 10**6
"""An epoch after every codec's warm-up."""
SCOPES = ("tensor", "vector")
_CODEC = Choice(
    base=Codec,
    table=CODECS,
    help=f"What gradients are sent as: {', '.join(CODECS)}. --codec NAME --help shows what NAME has.",
    example="TopK(ratio=0.01)",
    defaults=lambda codec: codec.defaults,
)


@dataclass(frozen=True, kw_only=True)
class CodecOptions(Panel):
    """How gradients are sent."""

    codec: Codec = field(default_factory=NoCodec, metadata={CHOICE: _CODEC})
    codec_scope: str = "tensor"
    """What a codec codes one by one: each tensor of the model (tensor), or all as one vector (vector)."""

    @property
    def optimizer_momentum(self) -> float:
        """The momentum that the optimizer has: none, where the codec carries it."""
        return 0.0 if self.codec.carries_momentum else super().optimizer_momentum

    def make_codec(self) -> "CodecFactory | None":
        """Return what makes the codec at an end of a link; None: gradients are sent as they are."""
        if isinstance(self.codec, NoCodec):
            return None
        from gradwire.compression.coding import codec_factory

        workers = self.roles.count("worker")
        return codec_factory(self.codec, Setting(self.codec_scope, self.seed, workers=workers, momentum=self.momentum))

    def coded(self, layout: Layout) -> Coded | None:
        """Return the kind and length of the code of a gradient of this layout, at most; None: there is no codec.

        Where a codec warms up: after that.
        """
        from gradwire.compression.coding import coded

        like = torch.empty(0, dtype=self.torch_dtype, device="meta")
        return coded(self.strategy.cost(), self.make_codec(), layout, like, AFTER_WARM_UP)

    def start_arguments(self) -> dict[str, Any]:
        """Return the codec as an argument of `Strategy.start`."""
        return super().start_arguments() | {"codec": self.make_codec()}


class Compression(Wing):
    """Codecs."""

    title = "codec"
    panel = CodecOptions

    def resolve(self, options: CodecOptions, launcher: Launcher) -> CodecOptions:
        """Check that the strategy carries the codec."""
        one_of(options, "codec_scope", SCOPES)
        if not isinstance(options.codec, NoCodec):
            from gradwire.compression.coding import check_codec

            check_codec(options.codec, options.strategy, options.codec_scope, options.make_optimizer())
        elif options.codec_scope != CodecOptions.codec_scope:
            raise UsageError(f"--codec_scope {options.codec_scope}: there is no codec; give --codec too")
        return options


WING = Compression()
