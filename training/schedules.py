"""Learning rates that change with the samples processed, not with steps: then they mean the same for every strategy."""

import math
from collections.abc import Callable

SCHEDULES = ("constant", "step", "cosine")
_DROPS = (0.5, 0.75)  # of the training, where "step" divides by ten

Schedule = Callable[[float], float]


def schedule(kind: str, total: int, warmup: int) -> Schedule:
    """Return what maps the samples processed so far, by all workers, to a factor of the learning rate.

    `total` is how many there will be. During the first `warmup` samples the factor also rises in a line from 0 to 1.
    Of what follows, "step" divides it by ten after a half and after three quarters, "cosine" lets it fall to 0 along
    half a cosine (Loshchilov & Hutter, 2017, without restarts). Raises ValueError for another kind.
    """
    if kind not in SCHEDULES:
        raise ValueError(f"{kind}: there are {', '.join(SCHEDULES)}")

    def factor(samples: float) -> float:
        rise = min(1.0, samples / warmup) if warmup else 1.0
        done = min(1.0, max(0, samples - warmup) / max(1, total - warmup))
        if kind == "step":
            return rise * 0.1 ** sum(done >= drop for drop in _DROPS)
        if kind == "cosine":
            return rise * (1 + math.cos(math.pi * done)) / 2
        return rise

    return factor
