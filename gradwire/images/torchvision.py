"""Torchvision, where it is there."""

import importlib
from types import ModuleType

from gradwire.core.records.errors import as_usage_error


def import_torchvision(option: str) -> ModuleType:
    """Import torchvision for `option` (such as `--model resnet18`). Raises UsageError if it does not fit this torch."""
    what = f"{option}: needs torchvision, which is missing or does not match this torch"
    cure = "; install the two together: pip install torch torchvision"
    with as_usage_error(what, cure, (Exception, SystemExit)):  # of many kinds, if it was built for another torch
        return importlib.import_module("torchvision")
