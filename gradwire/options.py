"""The options of a run: those of the core, and those of every wing that is there."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from gradwire.core.strategy.strategy import Strategy
from gradwire.core.training.options import CHOICE, Choice, CoreOptions
from gradwire.core.training.wing import Wing
from gradwire.strategies import STRATEGIES
from gradwire.wings import WINGS

_STRATEGY = Choice(
    base=Strategy,
    table=STRATEGIES,
    help=f"How the ranks work together: {', '.join(STRATEGIES)}, or yourmodule:YourClass. "
    "--strategy NAME --help shows what NAME has, --list a table of all.",
    example="RingAllReduce()",
    defaults=lambda strategy: strategy.traits.defaults,
)

if TYPE_CHECKING:
    from gradwire.checkpoints.wing import CheckpointOptions
    from gradwire.clusters.wing import LauncherOptions
    from gradwire.compression.wing import CodecOptions
    from gradwire.diagnosis.wing import DiagnosisOptions
    from gradwire.images.wing import ImageOptions
    from gradwire.language.wing import TextOptions
    from gradwire.networks.wing import LinkOptions
    from gradwire.pictures.wing import PictureOptions
    from gradwire.stragglers.wing import StragglerOptions

    class _Panels(
        CheckpointOptions, LauncherOptions, CodecOptions, DiagnosisOptions, ImageOptions, TextOptions, LinkOptions,
        PictureOptions, StragglerOptions,
    ):  # fmt: skip
        """The panels of all wings."""
else:
    _PANELS = [wing.panel for wing in WINGS if wing.panel]
    _Panels = type("_Panels", tuple(_PANELS), {})


@dataclass(frozen=True, kw_only=True)
class Options(_Panels, CoreOptions):
    """Train one network on several processes of this machine: run(Options(strategy=Downpour(n_push=4), n_gpus=4)).

    `model`, `dataset`, `task` and `optimizer` are names, or functions and classes as --help describes them, wherever
    they are defined; an optimizer of torch.optim may be given as its class. Raises UsageError for anything else.
    """

    strategy: Strategy = field(default_factory=lambda: STRATEGIES["ring_all_reduce"](), metadata={CHOICE: _STRATEGY})

    wings: ClassVar[tuple[Wing, ...]] = WINGS
    panels: ClassVar = {**CoreOptions.panels, **{wing.title: wing.panel for wing in WINGS if wing.panel}}


def option_names() -> list[str]:
    """Return the names of the options that every run has, as on the command line without the dashes."""
    return Options.names()
