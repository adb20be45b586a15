"""What is done to the disk, in its order: for the tests of files that a power failure must not tear."""

import os
from typing import Any

import pytest


def note_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the list to which ("sync", path) and ("rename", new path) are added as they are done from here on."""
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def note_sync(number: int) -> None:
        fsync(number)
        done.append(("sync", os.readlink(f"/proc/self/fd/{number}")))

    def note_rename(old: Any, new: Any) -> None:
        replace(old, new)
        done.append(("rename", str(new)))

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_rename)
    return done
