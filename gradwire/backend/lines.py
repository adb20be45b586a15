"""Which line of the user's a call comes from."""

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_OTHERS = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__, os.__file__))
_names: dict[CodeType, str] = {}  # of their files; empty: the code is not the user's
_files: dict[str, str] = {}  # by name


def line_at_work() -> str:
    """Return the innermost line at work that is neither torch's, Python's nor this wing's, such as "mine.py:20"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _names.get(frame.f_code)
        if name is None:
            file = frame.f_code.co_filename
            name = _names[frame.f_code] = "" if file.startswith((*_OTHERS, "<frozen")) else os.path.basename(file)
            _files.setdefault(name, file)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "its start"


def file_of(name: str) -> str:
    """Return the path of a file that `line_at_work` has named."""
    return _files[name]
