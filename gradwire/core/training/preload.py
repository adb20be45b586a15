"""Imported once by the fork server, so that no rank pays for it: everything a rank imports."""

import gc

from gradwire.core.training import loop

__all__ = ["loop"]

gc.freeze()  # no rank looks for garbage in what was loaded
