"""Which line of the user's a call comes from."""

import os
import sys
from pathlib import Path
from types import FrameType

import torch

_OTHERS = tuple(f"{Path(file).parent}{os.sep}" for file in (__file__, torch.__file__, os.__file__))


def line_at_work() -> str:
    """Return the innermost line at work that is neither torch's, Python's nor this wing's, such as "mine.py:20"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_OTHERS, "<frozen")):
        frame = frame.f_back
    return "its start" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
