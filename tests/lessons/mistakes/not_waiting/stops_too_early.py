"""Asks for a small x after 50 steps."""

from lessons.solutions.not_waiting import descend, serve  # noqa: F401 - these are right


def largest_rate(curvature: float, tau: int) -> float:
    small, large = 0.0, 3 / curvature
    for _ in range(30):
        rate = (small + large) / 2
        if abs(descend(rate, curvature, tau, 50)[-1]) < 1e-3:
            small = rate
        else:
            large = rate
    return small
