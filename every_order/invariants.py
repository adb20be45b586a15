"""What must hold in every order: short functions of a recorded run, chosen by what is known of the strategy.

Each returns None, or one line that says what is wrong. One of the user's is such a function too.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch

from every_order.problem import N_NUMBERS, Numbers
from every_order.runs import LR, Case, Run
from strategies.asynchronous_server.dgs import DGS
from strategies.common.workers import GRADIENT, SERVER
from strategies.local_models.drifting import Drifting
from transports.messages import PeerLost

_ROUNDING = 1e-9
Holds = Callable[[Run], str | None]


@dataclass(frozen=True)
class Invariant:
    """What must hold, in words, and the function; `of_ended`: it is asked only of runs that have ended."""

    says: str
    holds: Holds
    of_ended: bool = True


def chosen(case: Case) -> list[Invariant]:
    """Return what must hold of a case."""
    strategy, traits = case.strategy, case.strategy.traits
    found = [
        Invariant("no rank fails", fails, of_ended=False),
        Invariant("no rank waits for ever", waits, of_ended=False),
        Invariant("nor where a wait holds until all is read", waits_in_a_circle, of_ended=False),
        Invariant("nothing is changed while it is on its way or being read", changes, of_ended=False),
    ]
    if not case.dies:
        found.append(Invariant("every message is taken, and given back", leaves))
    if "server" in case.roles:
        found.append(Invariant("every gradient is applied once, or dropped and counted", applies_once))
    if weight(case) is not None and not case.dies:
        found.append(Invariant("every gradient is in the model, once", has_marks))
    if traits.agree:
        found.append(Invariant("all replicas have the same bits", agree))
    if getattr(strategy, "max_staleness", None) is not None:
        found.append(Invariant(f"no gradient is staler than (2 s + 1) (W - 1) = {stalest(case)}", is_stale))
    if isinstance(strategy, DGS) and strategy.downlink:
        found.append(Invariant("what the server knows of each worker's model is that model", knows))
    return found


def fails(run: Run) -> str | None:
    """No rank raises an error, but for one that names a dead rank, where the algorithm cannot lose it."""
    dead, traits = run.scheduler.dead, run.case.strategy.traits
    for rank in run.ranks:
        error = rank.error
        if error and not (isinstance(error, PeerLost) and error.rank == dead and not traits.workers_may_die):
            return f"rank {rank.rank}: {type(error).__name__}: {error}"
    return None


def waits(run: Run) -> str | None:
    """Nothing more can happen only when all have ended."""
    if run.has_ended or run.scheduler.failed:
        return None
    return "; ".join(f"rank {rank.rank} waits for {rank.waits_for[1]}" for rank in run.living if not rank.ended)


def waits_in_a_circle(run: Run) -> str | None:
    """As `waits`, also where a sender waits until all that it sent has been read, as in shared memory.

    In the run such waits ended by copying. Each would have held until its message was read, and so until the waits
    that came before that had ended: a circle of these would have held for ever.
    """
    copied = run.scheduler.copied
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
    """The (first) server has applied or dropped as many messages of each worker as that has sent; of a dead, at most.

    And where x adds up what is applied, as much is in the model.
    """
    used = Counter(k for k, _, _ in run.applied + run.dropped)
    for rank in run.ranks:
        tags = (GRADIENT, "push", "rest")
        sent = sum(bool(n) and dst == SERVER and tag in tags for dst, tag, n in rank.numbers)
        if used[rank.rank] > sent or (used[rank.rank] < sent and rank.rank != run.scheduler.dead):
            return f"rank {rank.rank} sent {sent} gradients, and {used[rank.rank]} were applied or dropped"
    if weight(run.case) == 1 and abs((total := sum(marks(run))) - len(run.applied)) > _ROUNDING:
        return f"{len(run.applied)} gradients were applied, and {total:.3g} are in the model"
    return None


def weight(case: Case) -> float | None:
    """Return the weight of each gradient in the model, in learning rates; None where they differ."""
    strategy, traits = case.strategy, case.strategy.traits
    if traits.server_updates:
        if getattr(strategy, "aggregate", 1) > 1 or getattr(strategy, "n_backup", 0):
            return None
        return 1.0 if traits.asynchronous else 1 / case.workers
    if "server" in case.roles or not (traits.agree or isinstance(strategy, Drifting)):
        return None
    if getattr(strategy, "outer_optimizer", "average") != "average":
        return None
    return 1.0 if traits.asynchronous and traits.agree else 1 / case.workers


def marks(run: Run) -> list[float]:
    """Return how far the mark of each sample is from its start, in learning rates."""
    assert run.model is not None
    moved: list[float] = ((Numbers(run.case.plan.n_samples).x.detach() - run.model)[N_NUMBERS:] / LR).tolist()
    return moved


def has_marks(run: Run) -> str | None:
    """The mark of each sample has moved as the gradients of this sample that were computed say."""
    for i, moved in enumerate(marks(run)):
        computed, found = sum(rank.computed.count(i) for rank in run.ranks), moved / (weight(run.case) or 1.0)
        if abs(found - computed) > _ROUNDING:
            return f"of sample {i}, {computed} gradients were computed, and {found:.3g} are in the model"
    return None


def agree(run: Run) -> str | None:
    """x of every rank has the bits of rank 0's."""
    first, *others = run.living
    for rank in others:
        if not torch.equal(rank.replica.x, first.replica.x):
            return f"rank {rank.rank} ended with other parameters than rank {first.rank}"
    return None


def stalest(case: Case) -> int:
    """Return the bound on the staleness, in versions."""
    return int((2 * getattr(case.strategy, "max_staleness", 0) + 1) * (case.workers - 1))


def staleness(run: Run) -> int:
    """Return the greatest staleness of a gradient of the run, in versions."""
    return max((applied - read for _, read, applied in run.applied), default=0)


def is_stale(run: Run) -> str | None:
    """See AsyncParamServer."""
    found = staleness(run)
    return None if found <= stalest(run.case) else f"a gradient was {found} versions stale"


def knows(run: Run) -> str | None:
    """DGS: w_k on the server and x_k of worker k are the same."""
    server = run.ranks[SERVER].strategy
    assert isinstance(server, DGS)
    for rank in run.living[1:]:
        if not torch.allclose(server.differences[rank.rank].w, rank.replica.x, rtol=1e-12, atol=1e-12):
            return f"rank {rank.rank} ended with another model than the server has for it"
    return None
