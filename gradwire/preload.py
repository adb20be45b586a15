"""Imported once by the fork server, so that no rank pays for it: everything a rank imports."""

import gc

from gradwire import options
from gradwire.core.launchers import rank_process
from gradwire.core.training import loop
from gradwire.core.transports import shared_memory

__all__ = ["loop", "options", "rank_process", "shared_memory"]

gc.freeze()  # no rank looks for garbage in the loaded modules
