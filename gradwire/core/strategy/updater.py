"""x <- optimizer(x, g), with what belongs to every update: the learning rate's schedule, the bound on g, the counts."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gradwire.core.records.errors import UsageError
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.factories import ByTensor, OptimizerFactory, is_flat
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.missing import Missing, cut, is_missing
from gradwire.core.strategy.state import nbytes_of

_SLICE, _MOST_SLICES = 2**16, 16  # elements that are updated together at least, so that temporaries are small
Schedule = Callable[[float], float]
Made = TypeVar("Made", bound=torch.optim.Optimizer)


def optimizer_of(kind: type[Made], make: OptimizerFactory, why: str, cure: str) -> Made:
    """Return the optimizer of one element, to read its options. Raises UsageError if it is not a `kind`."""
    made = None if isinstance(make, ByTensor) else make([nn.Parameter(torch.zeros(1))])
    if not isinstance(made, kind):
        raise UsageError(f"--optimizer {_name_of(make, made)}: {why}; {cure}")
    return made


def _name_of(make: OptimizerFactory, made: torch.optim.Optimizer | None) -> str:
    return make.name if isinstance(make, ByTensor) else type(made).__name__.lower()


class Updater:
    """The updates that one rank makes.

    `optimizer` makes any torch optimizer from a list of parameters: of one, the vector x, if it `is_flat`; else of the
    tensors that `layout` says x is made of, which are views of it, and so are their gradients of g. `clip_norm` bounds
    the norm of its gradient (0: no bound). `schedule`, unless it is None, maps the samples processed so far by
    all workers to a factor of the learning rate of each group.

    `lacking` are the numbers of the tensors that may have no gradient, in which case it is -0: such a tensor keeps its
    value and its state. `missing` finds them in a gradient.

    `version` counts the updates. `samples` are those whose gradients x has taken in, of all workers, as far as this
    rank knows; `processed` counts also those whose gradients no update used, and is what the schedule counts.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        optimizer: OptimizerFactory,
        clip_norm: float,
        schedule: Schedule | None,
        recorder: Recorder,
        layout: Layout | None = None,
    ) -> None:
        self._make = optimizer
        self.layout = layout or Layout.of((str(i), p) for i, p in enumerate(parameters))
        self.is_flat = is_flat(optimizer)
        self._recorder = recorder
        self.clip_norm = clip_norm
        self.schedule = schedule
        self.before_update: Callable[[], None] = lambda: None  # called when the parameters hold their gradients
        self.after_update: Callable[[], None] = lambda: None  # on a server, called when all has been done for a version
        self.until: float = math.inf  # samples with which the epoch ends, where a server ends it
        self.lacking: set[int] = set()
        self.version = 0
        self.samples = 0
        self.processed = 0.0
        self.optimize(*parameters)

    def optimize(
        self,
        *parameters: torch.Tensor,
        parts: Sequence[slice] | None = None,
        packed: bool = False,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Update these, the vector x or all tensors, with a new optimizer.

        `parts`: update only these parts of x; `packed`: the parts are stored contiguously in one tensor.
        `norm` returns the norm of the whole gradient, given that of the parts.
        """
        self._norm, layout, x = norm, self.layout, parameters[0]
        self.missing = Missing(layout.slices, [slice(0, layout.n)] if parts is None else parts, x.device)
        if self.is_flat:
            if parts is not None and not packed:
                parameters = tuple(x[part] for part in parts)
            if len(parameters) == 1 and not isinstance(x, nn.Parameter):
                n = parameters[0].numel()
                parameters = parameters[0].split(max(_SLICE, -(-n // _MOST_SLICES // 64) * 64))
            self.own: Sequence[int] = range(len(parameters))
        else:
            # Without a gradient, the tensors of other parts stay as they are, and have no state.
            starts = [where.start for where in layout.slices]
            self.own = (
                range(len(starts))
                if parts is None
                else [i for part in parts for i, start in enumerate(starts) if part.start <= start < part.stop]
            )
            if packed:
                nothing = x.new_full((), math.nan)
                own = dict(zip(self.own, layout.views(x, self.own), strict=True))
                parameters = tuple(own.get(i, nothing.expand(shape)) for i, shape in enumerate(layout.shapes))
            elif [tuple(p.shape) for p in parameters] != list(layout.shapes):
                parameters = tuple(layout.views(x))
        self.parameters = [p if isinstance(p, nn.Parameter) else nn.Parameter(p) for p in parameters]
        make = partial(self._make, layout=layout) if isinstance(self._make, ByTensor) else self._make
        self.optimizer = make(list(self.parameters))
        if {id(p) for group in self.optimizer.param_groups for p in group["params"]} - set(map(id, self.parameters)):
            name = _name_of(self._make, self.optimizer)
            raise UsageError(f"--optimizer {name}: has parameters that it was not given; make it of those that it gets")
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self.sizes = [p.numel() for p in self.parameters]
        self._is_cut = False  # between tensors, since some of them had no gradient

    def parts(self, n: int, within: slice | None = None) -> list[slice]:
        """Return n parts of x, or of what lies `within` it, that may be updated apart.

        They are as `tensor_split` has them, or cut between tensors where the optimizer sees these.
        """
        start, stop = (within.start, within.stop) if within else (0, self.layout.n)
        each, longer = divmod(stop - start, n)
        ends = [start + i * each + min(i, longer) for i in range(n + 1)]
        if not self.is_flat:
            cuts = [start, *(where.stop for where in self.layout.slices if start < where.stop <= stop)]
            ends = [min(cuts, key=lambda cut: abs(cut - end)) for end in ends]
        return [slice(*both) for both in itertools.pairwise(ends)]

    def step(self, g: torch.Tensor | None, n_samples: int, *, processed: float | None = None) -> None:
        """x <- optimizer(x, g), g [n] being the mean gradient over `n_samples`; None: the parameters hold theirs.

        Where parts of x are updated, g is those parts of the gradient, one after the other.

        `processed`: on how many samples the workers have computed for this update, by default `n_samples`.
        """
        processed = n_samples if processed is None else processed
        if g is not None:
            self._give(g)
        self.before_update()
        total = self._norm_of(g) if self.clip_norm else None
        self._update(g, processed, self.own, total)
        self.count(n_samples, processed)

    def _norm_of(self, g: torch.Tensor | None) -> torch.Tensor:
        """Return the norm of the whole gradient, which `_give` has given."""
        if self._norm and g is not None:
            return self._norm(g)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return get_total_norm([g] if self.is_flat and g is not None else gradients)

    def _update(
        self, g: torch.Tensor | None, processed: float, numbers: Sequence[int], total: torch.Tensor | None = None
    ) -> None:
        """Update the parameters with these numbers, whose gradients have the norm `total` if they are bounded."""
        with self._recorder.phase("update", sum(self.sizes[i] for i in numbers) / self.layout.n):
            self._set_rates(processed)
            if total is not None:
                clip_grads_with_norm_(self.parameters, self.clip_norm, total)
            self._skip_missing(g)
            self.optimizer.step()

    def _give(self, g: torch.Tensor) -> None:
        gradients = g.split(self.sizes) if self.is_flat else self.layout.views(g, self.own)
        for i, gradient in zip(self.own, gradients, strict=True):
            self.parameters[i].grad = gradient

    def _skip_missing(self, g: torch.Tensor | None) -> None:
        """Take -0 from the parameters: without a gradient the optimizer leaves them as they are, and their state."""
        if not self.lacking:
            return
        if g is not None and self.is_flat:
            self.cut(
                end
                for i in self.missing.of(g, self.lacking)
                for at in self.missing.places[i]
                for end in (at.start, at.stop)
            )
        for p in self.parameters:
            if p.grad is not None and is_missing(p.grad):
                p.grad = None

    def cut(self, ends: Iterable[int]) -> None:
        """Cut the vectors that a flat optimizer has, and its state, so that pieces end at these places."""
        pieces = cut(self.optimizer, self.parameters, {*ends})
        if len(pieces) > len(self.parameters):
            self.parameters, self.own, self._is_cut = pieces, range(len(pieces)), True
            self.sizes = [p.numel() for p in pieces]

    def _set_rates(self, processed: float) -> None:
        if self.schedule:
            factor = self.schedule(self.processed + processed / 2)
            for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor

    @property
    def rate(self) -> float:
        """The learning rate, of the first group, after the samples that this rank knows of."""
        return float(self._rates[0]) * (self.schedule(self.processed) if self.schedule else 1.0)

    @property
    def is_over(self) -> bool:
        """Whether the samples of the epoch have been taken in, as far as this rank knows."""
        return self.samples >= self.until

    def count(self, n_samples: int, processed: float | None = None) -> None:
        """Count one update with `n_samples`, made here or by adding what a worker has computed."""
        self.version += 1
        self.samples += n_samples
        self.processed += n_samples if processed is None else processed

    @property
    def state_bytes(self) -> int:
        """The memory of the optimizer's state, such as momentum, on this rank."""
        return nbytes_of(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and the counts, copied: training on does not change them."""
        counts = {"version": self.version, "samples": self.samples, "processed": self.processed}
        sizes = {"sizes": self.sizes} if self._is_cut else {}
        return {"optimizer": deepcopy(self.optimizer.state_dict()) | sizes, **counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.cut(itertools.accumulate(state["optimizer"].get("sizes", ())))
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self.version, self.samples, self.processed = state["version"], state["samples"], state["processed"]


def try_step(make: OptimizerFactory, layout: Layout, dtype: torch.dtype) -> None:
    """Have an optimizer that sees tensors take a step with zeros; raise what it raises."""
    if not is_flat(make):
        x = torch.zeros(layout.n, dtype=dtype)
        Updater([x], make, 0.0, None, Recorder(), layout).step(torch.zeros_like(x), 1)


class HasUpdater:
    """An object with an `updater`; `descent` is its former name, which files of users may contain."""

    updater: Updater

    @property
    def descent(self) -> Updater:
        """The same object as `updater`."""
        return self.updater
