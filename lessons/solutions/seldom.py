"""Lab 12, solved: what `strategies/local_models/streaming_diloco.py` does to a fragment, if all ranks count alike."""

import torch

from lessons.seldom import MOMENTUM, OUTER_LR, Fragment
from strategies.collectives import Rounds


def send(sums: Rounds, fragment: Fragment) -> None:
    """Begin to sum the outer gradients of all ranks."""
    torch.sub(fragment.x0, fragment.x, out=fragment.sum)
    sums.begin(fragment.sum, 1, fragment.tag)


def use(sums: Rounds, fragment: Fragment, alpha: float) -> None:
    """Take the outer step; x <- alpha x + (1 - alpha) x0."""
    n = sums.end(fragment.tag)
    d = fragment.sum.div_(n)
    fragment.momentum.mul_(MOMENTUM).add_(d)
    fragment.x0.sub_(OUTER_LR * (d + MOMENTUM * fragment.momentum))
    fragment.x.mul_(alpha).add_(fragment.x0, alpha=1 - alpha)


def outer_step(sums: Rounds, fragment: Fragment) -> None:
    """After H local steps: x0 takes one step of SGD with Nesterov momentum, and x goes on from there."""
    send(sums, fragment)
    use(sums, fragment, 0)


def stream(sums: Rounds, fragment: Fragment, t: int) -> None:
    """After local step t = 1, 2, ...: if the fragment has its turn, send it; use what it sent tau steps ago."""
    if (t - fragment.offset) % fragment.H == 0:
        send(sums, fragment)
    if t > fragment.tau and (t - fragment.tau - fragment.offset) % fragment.H == 0:
        use(sums, fragment, fragment.alpha)
