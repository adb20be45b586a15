"""The models by name: a small one, the user's own, and what wings add."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradwire.core.records.errors import UsageError, one_line, unknown
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import call_user_function, import_user_object


@dataclass(frozen=True)
class Model:
    """A model by name: `build(input_shape, n_classes, options)` returns it with new random weights."""

    build: Callable[[tuple[int, ...], int, str], nn.Module]
    takes_text: bool = False
    has_options: bool = False
    """Whether it has --model_options."""


def build(name: str, input_shape: tuple[int, ...], n_classes: int, options: str = "") -> nn.Module:
    """Build a model with new random weights, from torch's global generator.

    `name`: one of `MODELS`, or "yourmodule:function", called as function(input_shape, n_classes, **options).
    `input_shape`: of one sample, (C, H, W), (features,) or (tokens,). `options`: as --model_options has them. Raises
    UsageError if there is no such model or option, it does not fit the input, or the user's function is wrong.
    """
    if name not in MODELS and ":" not in name:
        raise unknown("--model", name, MODELS, "yourmodule:function")
    if ":" in name:
        return _user(name, input_shape, n_classes, options)
    model = MODELS[name]
    if options and not model.has_options:
        able = "".join(f", or take --model {able}" for able, other in MODELS.items() if other.has_options)
        raise UsageError(f"--model_options {options}: --model {name} has none; leave it out{able}")
    return model.build(input_shape, n_classes, options)


def seeded(name: str, data: Data, seed: int, dtype: torch.dtype, options: str = "") -> nn.Module:
    """Build a model for a data set, with the first weights of a seed; the random state stays as it is."""
    if data.vocabulary is not None and name in MODELS and not MODELS[name].takes_text:
        able = "".join(f"--model {able}, or " for able, other in MODELS.items() if other.takes_text)
        raise UsageError(f"--model {name}: takes no text; take {able}one of your own")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(name, data.input_shape, data.n_classes, options).to(dtype)


def check_layers(name: str, model: nn.Module) -> None:
    """Verify that all processes make the same of `model`. Raises UsageError."""
    if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
        raise UsageError(f"--model {name}: has lazy layers, which each process would make anew; give them their sizes")


def check(name: str, model: nn.Module, input_shape: tuple[int, ...], n_classes: int) -> None:
    """Verify that `model`, left in evaluation mode, maps 2 samples of `input_shape` to (2, n_classes).

    Raises UsageError, naming `--model name`, if it raises or gives anything else.
    """
    check_layers(name, model)
    parameter = next(p for p in model.parameters() if p.dtype.is_floating_point)
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(2, *input_shape, dtype=parameter.dtype, device=parameter.device))
    except Exception as error:
        raise UsageError(
            f"--model {name}: raised {one_line(error)} on samples of shape {input_shape}; make it take them"
        ) from error
    given = tuple(output.shape) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
    if given != (2, n_classes):
        raise UsageError(
            f"--model {name}: gave {given} for 2 samples of shape {input_shape}; make it give {(2, n_classes)}"
        )


def _user(name: str, input_shape: tuple[int, ...], n_classes: int, options: str) -> nn.Module:
    values = {}
    if options:
        from gradwire.core.workloads.model_options import options_for

        values = options_for(name, options, import_user_object("--model", name))
    model = call_user_function("--model", name, input_shape, n_classes, **values)
    if not isinstance(model, nn.Module):
        raise UsageError(f"--model {name}: returned a {type(model).__name__}; return a torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"--model {name}: has no trainable parameter; give it one that requires grad")
    return model


def _mlp(n_inputs: int, n_classes: int, width: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(n_inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, n_classes),
    )


MODELS = {
    "mlp": Model(lambda input_shape, n_classes, _: _mlp(prod(input_shape), n_classes)),
}
"""The models that `build` knows, besides yourmodule:function; wings add theirs."""
