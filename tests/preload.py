"""Imported once by the fork server of the tests: what the modules import whose functions the ranks call."""

import atexit
import gc

import hypothesis.strategies
import pytest
import torch._dynamo

from gradwire import preload

__all__ = ["hypothesis", "preload", "pytest", "torch"]

gc.freeze()
atexit.register(gc.unfreeze)  # else triton tells at the server's end of what it finds alive
