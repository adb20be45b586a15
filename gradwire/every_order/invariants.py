"""What must hold in every order: short functions of a recorded run, chosen by what is known of the strategy.

Each returns None, or one line that says what is wrong. One of the user's is such a function too.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from gradwire.core.records.errors import one_line
from gradwire.core.strategy.base import Strategy
from gradwire.core.strategy.workers import GRADIENT, SERVER
from gradwire.core.transports.messages import PeerLost
from gradwire.every_order.problem import N_NUMBERS, Numbers
from gradwire.every_order.runs import LR, Case, Run, run_once

_ROUNDING = 1e-9
Holds = Callable[[Run], str | None]


def chosen(case: Case) -> dict[str, Holds]:
    """Return what must hold of a run of a case that has ended, in words and as a function."""
    strategy, w = case.strategy, None if case.dies else weight(case)
    most = strategy.stalest(case.workers)
    knows_models = type(strategy).known_models is not Strategy.known_models
    found: list[tuple[bool, str, Holds]] = [
        (not case.dies, "every message is taken, and given back", leaves),
        ("server" in case.roles, "every gradient is applied once, or dropped and counted", applies_once),
        (w is not None, f"the model has every gradient once, with weight {w or 0:.3g}", partial(has_marks, w or 0)),
        (strategy.traits.agree, "all replicas have the same bits", agree),
        (knows_models, "a server's copy of a worker's model is that model", knows),
        (most is not None, f"no gradient is more than {most} versions stale", is_stale),
    ]
    return {says: holds for applies, says, holds in found if applies}


def ask(run: Run, of_ended: dict[str, Holds]) -> dict[str, str | None]:
    """Return what is wrong with a run (None: nothing), by what must hold of all, and `of_ended` if it has ended."""
    asked = OF_ALL | of_ended if run.has_ended else OF_ALL
    return {says: holds(run) for says, holds in asked.items()}


def fails(run: Run) -> str | None:
    """No rank raises an error, but for one that names a dead rank, where the algorithm cannot lose it."""
    dead, traits = run.dead, run.case.strategy.traits
    for rank in run.ranks:
        error = rank.error
        if error and not (isinstance(error, PeerLost) and error.rank == dead and not traits.workers_may_die):
            return f"rank {rank.rank}: {one_line(error)}"
    return None


def waits(run: Run) -> str | None:
    """Nothing more can happen only when all have ended."""
    if run.has_ended or run.failed:
        return None
    return "; ".join(f"rank {rank.rank} waits for {rank.waits_for[1]}" for rank in run.living if not rank.ended)


def waits_in_a_circle(run: Run) -> str | None:
    """As `waits`, also where a sender waits until all that it sent has been read, as in shared memory.

    In the run such waits ended by copying. Each would have held until its message was read, and so until the waits
    that came before that had ended: a circle of these would have held for ever.
    """
    copied = run.copied
    held_by = {one: [other for other in copied if one.holds(other)] for one in copied}
    while free := [one for one in held_by if not any(other in held_by for other in held_by[one])]:
        for one in free:
            del held_by[one]
    return "where waits hold: " + "; ".join(f"{one.what} is waited for" for one in held_by) if held_by else None


def changes(run: Run) -> str | None:
    """See `InPlace`."""
    return next((race for rank in run.ranks for race in rank.races), None)


def leaves(run: Run) -> str | None:
    """All that was sent was taken, and given back."""
    for rank in run.ranks:
        for (src, tag), queue in rank.inbox.queues.items():
            if queue:
                return f"rank {rank.rank} never took {tag!r} of rank {src}"
        for work in rank.unread:
            return f"{work.what} was never given back"
    return None


def applies_once(run: Run) -> str | None:
    """The (first) server has applied or dropped as many gradients of a worker as it has sent; of a dead, at most."""
    used = Counter(k for k, _, _ in run.applied + run.dropped)
    for rank in run.ranks if hasattr(run.ranks[SERVER].strategy, "workers") else ():  # else nothing is recorded
        tags = (GRADIENT, "push", "rest")
        sent = sum(bool(n) and dst == SERVER and tag in tags for dst, tag, n in rank.numbers)
        if used[rank.rank] > sent or (used[rank.rank] < sent and rank.rank != run.dead):
            return f"rank {rank.rank} sent {sent} gradients, and {used[rank.rank]} were applied or dropped"
    return None


def weight(case: Case) -> float | None:
    """Return the weight of each gradient in the model, in learning rates; None where it is not the same for all.

    Known where ranks without a server agree: there a step adds the mean, or, where they share x, each its own. Else
    seen in the plain order, which others are then compared with.
    """
    traits, served = case.strategy.traits, "server" in case.roles
    if case.strategy.cost().code:
        return None  # what a code leaves out comes later, or never
    if traits.agree and not served:
        return 1.0 if traits.asynchronous else 1 / case.workers
    if served and (not traits.agree or traits.overwrites):
        return None
    run = run_once(case, lambda _: 0)
    if not run.has_ended or run.dropped or (run.shared and not traits.agree):
        return None
    weights = [moved / computed for moved, computed in marks(run) if computed]
    return weights[0] if min(weights) > max(weights) - _ROUNDING and weights[0] > _ROUNDING else None


def marks(run: Run) -> list[tuple[float, int]]:
    """Return how far the mark of each sample has moved, in learning rates, and of how many gradients it should have."""
    assert run.model is not None
    moved = (Numbers(run.case.plan.n_samples).x.detach() - run.model)[N_NUMBERS:] / LR
    return [(by, sum(rank.computed.count(i) for rank in run.ranks)) for i, by in enumerate(moved.tolist())]


def has_marks(weight: float, run: Run) -> str | None:
    """The mark of each sample has moved as the gradients of this sample that were computed say."""
    for i, (moved, computed) in enumerate(marks(run)):
        if abs(moved / weight - computed) > _ROUNDING and not run.dropped:
            return f"of sample {i}, {computed} gradients were computed, and {moved / weight:.3g} are in the model"
    return None


def agree(run: Run) -> str | None:
    """x of every rank has the bits of rank 0's."""
    first, *others = run.living
    for rank in others:
        if not torch.equal(rank.replica.x, first.replica.x):
            return f"rank {rank.rank} ended with other parameters than rank {first.rank}"
    return None


def staleness(run: Run) -> int:
    """Return the greatest staleness of a gradient of the run, in versions."""
    return max((applied - read for _, read, applied in run.applied), default=0)


def is_stale(run: Run) -> str | None:
    """See `Strategy.stalest`."""
    most, found = run.case.strategy.stalest(run.case.workers), staleness(run)
    return f"one was {found} versions stale" if most is not None and found > most else None


def knows(run: Run) -> str | None:
    """See `Strategy.known_models`."""
    for rank in run.living:
        for k, x_k in rank.strategy.known_models().items():
            if k != run.dead and not torch.allclose(x_k, run.ranks[k].replica.x, rtol=1e-12, atol=1e-12):
                return f"rank {k} ended with another model than rank {rank.rank} takes it to have"
    return None


OF_ALL: dict[str, Holds] = {
    "no rank fails": fails,
    "no rank waits for ever": waits,
    "no rank waits for ever if senders wait until all is read": waits_in_a_circle,
    "nothing is changed while it is on its way or being read": changes,
}
