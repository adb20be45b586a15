"""Leaves the curvature out."""

import math

from lessons.solutions.not_waiting import descend, serve  # noqa: F401 - these are right


def largest_rate(curvature: float, tau: int) -> float:
    return 2 * math.sin(math.pi / (2 * (2 * tau + 1)))
