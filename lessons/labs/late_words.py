"""The verdicts on the descent by late gradients of lab 4, and on the largest rate with which it converges."""

import math
from collections.abc import Iterator, Sequence

TOLERANCE = 0.02  # of the largest rate
_NEAR = 0.1  # of it: from here on x needs many steps to be small
_ROUNDING = 1e-9  # what it may change of a number


def explain_descend(rate: float, curvature: float, tau: int, steps: int, found: Sequence[float]) -> Iterator[str]:
    """Yield which steps of a descent by late gradients are wrong."""
    begin = f"descend({rate:.3f}, {curvature:.3f}, {tau}, {steps})"
    if len(found) != steps + 1:
        yield f"{begin} returned {len(found)} numbers; expected {steps + 1}, x_0 to x_{steps}"
    if not _is_same(found[0], 1):
        yield f"{begin}: x_0 is {found[0]:.4g}; expected 1"
    x = [1.0]
    for t in range(1, steps + 1):
        due = max(t - 1 - tau, 0)  # whose gradient is expected
        x.append(x[t - 1] - rate * curvature * x[due])
        if not _is_same(found[t], x[t]):
            yield f"{begin}: x_{t} {_explain_x(x, found[t], rate, curvature, tau, due)}"


def _explain_x(x: Sequence[float], found: float, rate: float, curvature: float, tau: int, due: int) -> str:
    """Return what is wrong with `found`, which should be the last of x; those before it were right."""
    t = len(x) - 1
    why = f"{tau} before x_{t - 1}" if t > tau else "since before x_0 there was x_0"
    if _is_same(found, x[t - 1]):
        return f"was made with no gradient; expected that at x_{due}, {why}"
    for u in range(t):
        if _is_same(found, x[t - 1] - rate * curvature * x[u]):
            return f"was made with the gradient at x_{u}; expected that at x_{due}, {why}"
    text = f"is {found:.12g}, expected {x[t]:.12g}"
    if _is_same(found, x[t - 1] - rate * x[due]):
        return f"{text}: the step was rate * x_{due}; the gradient is curvature * x_{due}"
    return f"{text}, which is x_{t - 1} - rate * (gradient at x_{due})"


def _is_same(one: float, other: float) -> bool:
    return abs(one - other) <= _ROUNDING * max(1.0, abs(other))


def explain_rates(asked: Sequence[tuple[float, int]], rates: Sequence[float]) -> Iterator[str]:
    """Yield what is wrong with the largest rates for pairs of a curvature and a staleness."""
    # On the border a root of z^(tau + 1) = z^tau - rate curvature has |z| = 1.
    largest = [2 * math.sin(math.pi / (2 * (2 * tau + 1))) / curvature for curvature, tau in asked]
    for (curvature, tau), rate, best in zip(asked, rates, largest, strict=True):
        if _is_near(rate, best):
            continue
        begin = f"largest_rate({curvature:.3f}, {tau}) returned {rate:.4g}:"
        if all(_is_near(one, 2 / c) for one, (c, _) in zip(rates, asked, strict=True)):
            yield f"{begin} that is the largest without staleness; with gradients {tau} late x swings ever further"
        if all(_is_near(one, of * c) for one, of, (c, _) in zip(rates, largest, asked, strict=True)):
            yield f"{begin} the curvature is not in it: twice as curved, half the rate"
        if rate > best:
            yield f"{begin} too large: with it x swings ever further, {_swing(rate, curvature, tau)}"
        text = f"{begin} too small: with {1.01 * max((1 - _NEAR) * best, rate):.4g} x still goes to 0"
        near = ", though so near the border it takes many steps to be small" if rate >= (1 - _NEAR) * best else ""
        yield text + near


def _is_near(rate: float, expected: float) -> bool:
    return abs(rate - expected) <= TOLERANCE * expected


def _swing(rate: float, curvature: float, tau: int) -> str:
    """Return how far x has come with a rate that is too large, in words."""
    x = [1.0]
    for t in range(200_000):
        x.append(x[t] - rate * curvature * x[max(t - tau, 0)])
        if abs(x[-1]) > 1e6:
            return f"to a million after {t + 1} steps"
    return "though slowly"
