"""Imported once by the fork server, so that no rank pays for it: everything a rank imports."""

from training import loop

__all__ = ["loop"]
