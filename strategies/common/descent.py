"""x <- optimizer(x, g), with what belongs to every update: the learning rate's schedule, the bound on g, the counts."""

import math
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from records.errors import UsageError
from records.recorder import Recorder
from strategies.common.kept import nbytes_of

OptimizerFactory = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
Schedule = Callable[[float], float]


class _Flat(torch.Tensor):
    """A parameter that refuses to tell its shape, except to torch itself."""

    _SHAPE = frozenset({"dim", "size", "ndim", "shape", "ndimension"})

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Raise UsageError where a function outside torch asks for the shape."""
        asked = getattr(func, "__self__", func) if func.__name__ == "__get__" else func
        if getattr(asked, "__name__", "") in cls._SHAPE:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith("torch."):
                raise UsageError(
                    "optimizer: it asks a parameter for its shape, but is given all parameters as one vector; treat "
                    "them alike, as in partial(torch.optim.AdamW, lr=1e-3)"
                )
        return super().__torch_function__(func, types, args, kwargs or {})


def check_factory(optimizer: OptimizerFactory) -> None:
    """Check that `optimizer` treats all parameters alike: it is given them as one vector. Raises UsageError."""
    made = optimizer([torch.zeros(1).as_subclass(_Flat).requires_grad_()])
    if (n := len(made.param_groups)) > 1:
        raise UsageError(
            f"optimizer: it makes {n} parameter groups, but is given all parameters as one vector; make one group"
        )


def is_elementwise(make: OptimizerFactory) -> bool:
    """Return whether the optimizer updates each element by itself, so that a vector may be cut over ranks.

    Tried out: the two halves of a vector must be updated as they are in the whole.
    """
    values = torch.linspace(-1, 2, 8, dtype=torch.float64)
    whole = torch.nn.Parameter(values.clone())
    halves = [torch.nn.Parameter(half.clone()) for half in values.tensor_split(2)]
    optimizers = [make([parameter]) for parameter in (whole, *halves)]
    for step in range(3):
        g = torch.sin(values + step)
        for parameter, gradient in zip((whole, *halves), (g, *g.tensor_split(2)), strict=True):
            parameter.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    return torch.allclose(whole, torch.cat([*halves]), rtol=1e-12, atol=0)


def check_elementwise(make: OptimizerFactory | None, strategy: str) -> None:
    """Check that the strategy of this name, whose ranks update parts of x, can use the optimizer. Raises UsageError."""
    if make and not is_elementwise(make):
        name = type(make([torch.nn.Parameter(torch.zeros(1))])).__name__.lower()
        raise UsageError(
            f"--optimizer {name}: {strategy} updates x in parts, but this optimizer looks at all of it; "
            "take another optimizer or another --strategy"
        )


class Descent:
    """The updates that one rank makes.

    `optimizer` makes any torch optimizer from a list of parameters: here one, the flat vector x. `clip_norm` bounds the
    norm of the gradient that it is given (0: no bound). `schedule`, if given, maps the samples processed so far by
    all workers to a factor of the learning rate.

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
    ) -> None:
        self._new_optimizer = optimizer
        self._recorder = recorder
        self.clip_norm = clip_norm
        self.schedule = schedule
        self.after_update: Callable[[], None] = lambda: None  # on a server, called when all has been done for a version
        self.until: float = math.inf  # samples with which the epoch ends, where a server ends it
        self.version = 0
        self.samples = 0
        self.processed = 0.0
        self._n = sum(p.numel() for p in parameters)
        self.optimize(*parameters)

    def optimize(self, *parameters: torch.Tensor, norm: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Update these, whole parameters or parts of them, with a new optimizer.

        `norm` returns the norm of the whole gradient, given the norm of a part of it.
        """
        self._norm = norm
        self.parameters = [p if isinstance(p, torch.nn.Parameter) else torch.nn.Parameter(p) for p in parameters]
        self.optimizer = self._new_optimizer(list(self.parameters))
        self.lr = self.optimizer.param_groups[0]["lr"]
        self._part = sum(p.numel() for p in self.parameters) / self._n

    def step(self, g: torch.Tensor | None, n_samples: int, *, processed: float | None = None) -> None:
        """x <- optimizer(x, g), g [n] being the mean gradient over `n_samples`; None: the parameters hold theirs.

        `processed`: on how many samples the workers have computed for this update, by default `n_samples`.
        """
        processed = n_samples if processed is None else processed
        if g is not None:
            self.parameters[0].grad = g
        if self.clip_norm:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            total = self._norm(gradients[0]) if self._norm else get_total_norm(gradients)
        with self._recorder.phase("update", self._part):
            if self.schedule:
                for group in self.optimizer.param_groups:
                    group["lr"] = self.lr * self.schedule(self.processed + processed / 2)
            if self.clip_norm:
                clip_grads_with_norm_(self.parameters, self.clip_norm, total)
            self.optimizer.step()
        self.count(n_samples, processed)

    def scale(self, g: torch.Tensor, n_samples: int) -> None:
        """g <- eta (g + lambda x): what SGD would subtract, for who subtracts it elsewhere. g is bounded first."""
        options = self.optimizer.param_groups[0]
        rate = options["lr"]
        if self.schedule:
            rate *= self.schedule(self.processed + n_samples / 2)
        if self.clip_norm:
            g.mul_(torch.clamp(self.clip_norm / (torch.linalg.vector_norm(g) + 1e-6), max=1.0))
        g.add_(self.parameters[0].data, alpha=options["weight_decay"]).mul_(rate)

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
        """Return the optimizer's state and the counts, copied: what is trained meanwhile does not change them."""
        return {
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "version": self.version,
            "samples": self.samples,
            "processed": self.processed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.optimizer.load_state_dict(deepcopy(state["optimizer"]))
        self.version, self.samples, self.processed = state["version"], state["samples"], state["processed"]
