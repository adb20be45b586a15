"""Any optimizer of torch.optim by its name, or the user's; and learning rates that change with the samples.

The rates change with the samples processed, not with steps: then they mean the same for every strategy.
"""

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.strategy.factories import ByTensor, OptimizerFactory, by_name, without_compiler
from gradwire.core.strategy.updater import Schedule
from gradwire.core.workloads.lookup import call_user_function

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
OF_TENSORS: dict[str, Callable[[dict[str, Any], float, float, float, str], ByTensor]] = {}
"""Those made of the model's tensors, by name: of their arguments, --lr, --momentum, --weight_decay and --decay.

Wings add theirs.
"""

Make = Callable[[Any], torch.optim.Optimizer]
_OWN = ("params", "lr", "weight_decay")  # have options of their own, or are no options

DECAYS = ("all", "matrices")
SCHEDULES = ("constant", "step", "cosine")
_DROPS = (0.5, 0.75)  # of the training, where "step" divides by ten


def factory(
    name: str, lr: float, momentum: float, weight_decay: float, options: Sequence[str], decay: str = "all"
) -> OptimizerFactory:
    """Return what makes the optimizer from a list of parameters; `options` are NAME=VALUE, as the class takes them.

    `momentum` is SGD's momentum, and the first beta of the Adam family. `decay`: one of DECAYS. A function of the
    user's gets none of these. Raises UsageError.
    """
    if ":" in name:
        return by_name(partial(_users, name), name)
    kind = OPTIMIZERS[name]
    takes = inspect.signature(kind).parameters
    arguments: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    if name in ("sgd", "muon"):
        arguments["momentum"] = momentum
    elif "betas" in takes:
        arguments["betas"] = (momentum, *takes["betas"].default[1:])
    if weight_decay and "weight_decay" not in takes:
        raise UsageError(f"--weight_decay {weight_decay}: {name} has none; leave it out, or take another --optimizer")
    arguments = {key: value for key, value in arguments.items() if key in takes} | _parsed(name, options, takes)
    made: Make = partial(without_compiler(kind), **arguments)
    if name in OF_TENSORS:
        return OF_TENSORS[name](arguments, lr, momentum, weight_decay, decay)
    make = made if decay == "all" else lambda parameters: made(parameter_groups(parameters, decay))
    try:
        vector = torch.nn.Parameter(torch.zeros(2))
        vector.grad = torch.ones(2)
        make([vector]).step()
    except Exception as error:
        raise UsageError(
            f"--optimizer {name}: does not work on one vector with these options: {one_line(error)}"
        ) from error
    return make


def parameter_groups(parameters: Sequence[torch.Tensor], decay: str) -> list[dict[str, Any]]:
    """Return the parameter groups: all in one, or vectors in one of their own, without decay."""
    decayed, others = ([p for p in parameters if (decay == "all" or p.dim() >= 2) is of] for of in (True, False))
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


def _users(name: str, named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """Call the user's function. Raises UsageError if it does not return an optimizer."""
    made = call_user_function("--optimizer", name, named)
    if not isinstance(made, torch.optim.Optimizer):
        raise UsageError(f"--optimizer {name}: returned a {type(made).__name__}; return a torch.optim.Optimizer")
    return made


def _parsed(name: str, options: Sequence[str], takes: Mapping[str, Any]) -> dict[str, Any]:
    parsed = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or key not in takes or key in _OWN or key in parsed:
            known = ", ".join(key for key in takes if key not in _OWN)
            raise UsageError(f"--optimizer_options {option}: must be NAME=VALUE, each once, of {name}'s: {known}")
        try:
            parsed[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise UsageError(f"--optimizer_options {option}: {text!r} is no number, True, False or (a, b)") from None
    return parsed


def schedule(kind: str, total: int, warmup: int) -> Schedule:
    """Return what maps the samples processed so far, by all workers, to a factor of the learning rate.

    `total` is how many there will be. During the first `warmup` samples the factor also rises in a line from 0 to 1.
    Of what follows, "step" divides it by ten after a half and after three quarters, "cosine" lets it fall to 0 along
    half a cosine (Loshchilov & Hutter, 2017, without restarts).
    """

    def factor(samples: float) -> float:
        rise = min(1.0, samples / warmup) if warmup else 1.0
        done = min(1.0, max(0, samples - warmup) / max(1, total - warmup))
        if kind == "step":
            return rise * 0.1 ** sum(done >= drop for drop in _DROPS)
        if kind == "cosine":
            return rise * (1 + math.cos(math.pi * done)) / 2
        return rise

    return factor
