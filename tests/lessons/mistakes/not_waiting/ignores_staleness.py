"""Gives the largest rate without staleness."""

from lessons.solutions.not_waiting import descend, serve  # noqa: F401 - these are right


def largest_rate(curvature: float, tau: int) -> float:
    return 2 / curvature
