"""What images add to a run: the check that DALI, if it is to decode them, can."""

from typing import Any

from torch import nn

from gradwire.core.launchers import Launcher
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data


class Images(Wing):
    """Pictures decoded by DALI."""

    def check(self, options: Any, launcher: Launcher, data: Data, model: nn.Module) -> None:
        """Check that --loader dali can read the data set."""
        if options.loader == "dali":
            from gradwire.images.dali import check_dali

            check_dali(data)


WING = Images()
