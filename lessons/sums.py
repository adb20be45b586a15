"""Which parts a sum is made of: the ranks' vectors are random, so a sum of them tells how often each is in it."""

from collections.abc import Iterable, Sequence
from itertools import count

import torch


def coefficients(vector: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[float] | None:
    """Return the a_k with vector = sum of a_k parts[k], by least squares; None if it is no such sum.

    All are of one length, at least as many elements as there are parts.
    """
    columns = torch.stack([part.double() for part in parts], dim=1)  # [length, parts]
    if columns.shape[0] < columns.shape[1] or vector.numel() != columns.shape[0]:
        return None
    if not (vector.isfinite().all() and columns.isfinite().all()):
        return None
    target = vector.double()
    some = 8 * len(parts) + 64  # elements that tell: whether the others agree is seen below
    found = torch.linalg.lstsq(columns[:some], target[:some, None]).solution[:, 0]
    rest = float((columns @ found - target).abs().max())
    if not rest <= 1e-3 * max(float(target.abs().max()), 1e-6):
        return None
    return [0.0 if abs(a) < 1e-3 else float(a) for a in found]


def are_all(found: Sequence[float], a: float) -> bool:
    """Whether each part is in a sum `a` times, as exactly as float32 tells."""
    return all(abs(times - a) < 1e-3 for times in found)


def describe(found: Sequence[float], what: str = "rank", numbers: Iterable[int] | None = None) -> str:
    """Return a sum in words: "rank 0 + 2 x rank 1"; "(...) / 3" of a mean. `what` the parts are, and their numbers."""
    used = [a for a in found if a]
    if not used:
        return "nothing of any of them"
    divisor = next((d for d in range(1, 17) if all(abs(d * a - round(d * a)) < 0.02 for a in used)), 1)
    pairs = zip(found, numbers or count(), strict=False)
    times = [("" if abs(divisor * a - 1) < 0.02 else f"{divisor * a:.3g} x ", number) for a, number in pairs if a]
    text = " + ".join(f"{factor}{what} {number}" for factor, number in times).replace("+ -", "- ")
    if divisor == 1:
        return text
    return f"({text}) / {divisor}" if len(used) > 1 else f"{text} / {divisor}"
