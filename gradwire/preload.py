"""Imported once by the fork server, so that no rank pays for it: everything a rank imports."""

import gc

from gradwire import options
from gradwire.core.training import loop

__all__ = ["loop", "options"]

gc.freeze()  # no rank looks for garbage in what was loaded
