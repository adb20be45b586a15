"""Invariants of every order: short functions of a recorded run, chosen by the traits of the strategy.

Each returns None, or one line that says what is wrong. An invariant of the user's is such a function too.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, cast, runtime_checkable

import torch
from torch.nn.utils import parameters_to_vector

from gradwire.core.records.errors import one_line
from gradwire.core.strategy.traits import Weight
from gradwire.core.strategy.workers import GRADIENT, SERVER
from gradwire.core.transports.messages import PeerLost
from gradwire.every_order.problem import N_NUMBERS, Numbers
from gradwire.every_order.runs import LR, Case, Run, counted

_ROUNDING = 1e-9
WEIGHED = "the model has every gradient once, with the weight that the class says"
Holds = Callable[[Run], str | None]


@runtime_checkable
class BoundsStaleness(Protocol):
    """A strategy whose gradients may be stale by some versions, and no more."""

    def stalest(self, workers: int) -> int | None:
        """Return the largest possible staleness of a gradient with `workers` workers, in versions; None: unlimited."""


@runtime_checkable
class KnowsModels(Protocol):
    """A strategy whose server keeps its own copies of the workers' models."""

    def known_models(self) -> Mapping[int, torch.Tensor]:
        """Return the x_k [n] of each worker by rank, on a worker none."""


def stalest(case: Case) -> int | None:
    """Return by how many versions a gradient is stale at most; None: by any number."""
    return case.strategy.stalest(case.workers) if isinstance(case.strategy, BoundsStaleness) else None


def chosen(case: Case) -> dict[str, Holds]:
    """Return what must hold of a run of a case that has ended, in words and as a function."""
    strategy, weight = case.strategy, weight_of(case)
    most = stalest(case)
    found: list[tuple[bool, str, Holds]] = [
        (not case.dies, "every message is taken, and given back", leaves),
        ("server" in case.roles, "every gradient is applied once, or dropped and counted", applies_once),
        (isinstance(weight, Weight), WEIGHED, partial(has_marks, cast(Weight, weight))),
        (strategy.traits.agree, "all replicas have the same bits", agree),
        (isinstance(strategy, KnowsModels), "a server's copy of a worker's model is that model", knows),
        (most is not None, f"no gradient is more than {most} versions stale", is_stale),
    ]
    return {says: holds for applies, says, holds in found if applies}


def ask(run: Run, of_ended: dict[str, Holds]) -> dict[str, str | None]:
    """Return the fault of a run, or None, by invariant: those of all runs, and `of_ended` if the run has ended."""
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
    if run.endless:
        return f"it has not ended after {len(run.taken)} decisions"
    return "; ".join(f"rank {rank.rank} waits for {rank.waits_for[1]}" for rank in run.living if not rank.ended)


def waits_in_a_circle(run: Run) -> str | None:
    """As `waits`, also where a sender waits until all that it sent has been read, as in shared memory.

    In the run such waits ended by copying. Each would have held until its message was read, and so until the waits
    that came before that had ended: a circle of these would have held for ever.
    """
    copied = run.copied
    held_by = {send: [other for other in copied if send.holds(other)] for send in copied}
    while free := [send for send in held_by if not any(other in held_by for other in held_by[send])]:
        for send in free:
            del held_by[send]
    return "where waits hold: " + "; ".join(f"{send.what} is waited for" for send in held_by) if held_by else None


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


def weight_of(case: Case) -> Weight | str:
    """Return the weight that the class says a gradient has in the model; in words, why it is not asked for."""
    strategy, options = case.strategy, case.options
    weight, period = strategy.weight(case.workers), strategy.period
    if strategy.cost().code:
        return "what a code leaves out is sent later, or never"
    if case.optimizer is None and (options.optimizer != "sgd" or options.momentum):
        return f"a step of {options.optimizer} is not proportional to the gradient"
    if isinstance(weight, str):
        return weight
    if case.dies:
        return "what the dead rank had computed may be lost"
    if weight.by_samples and weight.gradients > 1 and (left := case.steps * case.epochs % period):
        return f"--steps: the last {counted(left, 'step')} make no whole period of {period}; take a multiple of it"
    return weight


def updates(run: Run, weight: Weight) -> dict[tuple[int, int], list[list[int]]]:
    """Return the gradients of each update, as their samples, by the epoch and the number of the update.

    A server's records say it, if it takes several or drops some; else those of one step of all ranks are one update.
    """
    found: dict[tuple[int, int], list[list[int]]] = {}
    if run.used and (weight.gradients > 1 or run.dropped):
        computed = [iter(rank.computed) for rank in run.ranks]
        for k, epoch, version in run.used:
            gradient = next(computed[k], [])
            if version is not None:
                found.setdefault((epoch, version), []).append(gradient)
        return found
    for rank in run.ranks:
        for step, gradient in enumerate(rank.computed):
            found.setdefault((rank.rank if weight.gradients == 1 else 0, step), []).append(gradient)
    return found


def marks(run: Run) -> list[float]:
    """Return the movement of each sample's mark, in learning rates."""
    assert run.model is not None
    start = parameters_to_vector(Numbers(run.case.plan.n_samples).parameters()).detach()
    moved: list[float] = ((start - run.model)[N_NUMBERS:] / LR).tolist()
    return moved


def has_marks(weight: Weight, run: Run) -> str | None:
    """Each update takes as many gradients as the class says, and the mark of each sample moves by their weights."""
    found, expected = updates(run, weight), [0.0] * run.case.plan.n_samples
    last = dict(found.keys()) if run.case.strategy.traits.asynchronous else {}
    for (epoch, update), gradients in found.items():
        of = len(gradients)
        if of > weight.gradients or (of < weight.gradients and last.get(epoch) != update):
            return f"update {update} took {counted(of, 'gradient')} in place of {weight.gradients}"
        n = sum(map(len, gradients))
        for gradient in gradients:
            for i in gradient:
                expected[i] += weight.rate / (n if weight.by_samples else of * len(gradient))
    for i, (moved, right) in enumerate(zip(marks(run), expected, strict=True)):
        if abs(moved - right) > _ROUNDING:
            n = sum(gradient.count(i) for rank in run.ranks for gradient in rank.computed)
            return f"{counted(n, 'gradient')} of sample {i} moved the model by {moved:.4g} in place of {right:.4g}"
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
    """Return the staleness of the stalest gradient, if it is more than it may be."""
    most, found = stalest(run.case), staleness(run)
    return f"one was {found} versions stale" if most is not None and found > most else None


def knows(run: Run) -> str | None:
    """Return which rank has another model than another takes it to have."""
    for rank in run.living:
        assert isinstance(rank.strategy, KnowsModels), "as `chosen` has seen"
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
