"""What pictures add to a run: --tensorboard."""

from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.records.atomic import check_writable_by
from gradwire.core.records.options import OF_THIS_RUN
from gradwire.core.training.checks import check_path
from gradwire.core.training.options import Panel
from gradwire.core.training.watchers import Watcher
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data


@dataclass(frozen=True, kw_only=True)
class PictureOptions(Panel):
    """What shows a run while it goes on."""

    tensorboard: str | None = field(default=None, metadata=OF_THIS_RUN)
    """Write scalars for TensorBoard to DIR/RUN_NAME/rank-N while the run goes on: loss, scores, learning rate, bytes
    sent, share of waiting, staleness (pip install -e '.[tensorboard]')."""


class Pictures(Wing):
    """Scalars for TensorBoard."""

    title = "pictures"
    panel = PictureOptions

    def resolve(self, options: PictureOptions, launcher: Launcher) -> PictureOptions:
        """Check that it is a path."""
        check_path("tensorboard", options.tensorboard)
        return options

    def check(self, options: PictureOptions, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that the package is here, and that it can write there."""
        if options.tensorboard is not None and launcher.is_first:
            from gradwire.pictures.scalars import check_tensorboard

            check_tensorboard(options.tensorboard)
            check_writable_by("tensorboard", options.tensorboard)

    def watchers(self, options: PictureOptions) -> list[Watcher]:
        """Return what writes scalars."""
        if not options.tensorboard:
            return []
        from gradwire.pictures.scalars import ScalarWatcher

        return [ScalarWatcher(Path(options.tensorboard, str(options.run_name)))]


WING = Pictures()
