"""The models by name: small ones, torchvision's fitted to small images, a decoder for text, and the user's own."""

from math import prod
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradwire.core.records.errors import UsageError, one_line, unknown
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.lookup import call_user_function, import_torchvision, import_user_object, options_for
from gradwire.language.gpt import GPT

_SIDE_32 = ("mobilenet_v2", "resnet18", "resnet34", "resnet50", "vgg11")
_LEAST_SIDE = {"lenet": 8, **dict.fromkeys(_SIDE_32, 32), "alexnet": 64}
_LARGEST_SMALL_SIDE = 64

MODELS = ("mlp", *_LEAST_SIDE, "gpt")
"""The names that `build` knows, besides yourmodule:function."""


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
    if name == "gpt":
        try:
            return GPT(input_shape, n_classes, **options_for(name, options, GPT))
        except RuntimeError as error:
            raise UsageError(f"--model_options {options}: {one_line(error)}; take smaller ones") from error
    if options:
        raise UsageError(f"--model_options {options}: --model {name} has none; leave it out, or take --model gpt")
    if name == "mlp":
        return _mlp(prod(input_shape), n_classes)
    if len(input_shape) != 3:
        raise UsageError(f"--model {name}: needs images, but a sample is {input_shape}; take --model mlp")
    if name == "lenet":
        return _lenet(input_shape, n_classes)
    return _from_torchvision(name, input_shape, n_classes)


def seeded(name: str, data: Data, seed: int, dtype: torch.dtype, options: str = "") -> nn.Module:
    """Build a model for a data set, with the first weights of a seed; the random state stays as it is."""
    if data.vocabulary is not None and name in MODELS and name != "gpt":
        raise UsageError(f"--model {name}: takes no text; take --model gpt, or one of your own")
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
    values = options_for(name, options, import_user_object("--model", name)) if options else {}
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


def _lenet(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    channels, height, width = input_shape
    if min(height, width) < _LEAST_SIDE["lenet"]:
        raise UsageError(f"--model lenet: needs images of 8 x 8 or more, not {height} x {width}; take --model mlp")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, n_classes),
    )


def _from_torchvision(name: str, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    models = import_torchvision(f"--model {name}").models
    net: nn.Module = getattr(models, name)(weights=None, num_classes=n_classes)
    channels, height, width = input_shape
    if name.startswith("resnet") and max(height, width) <= _LARGEST_SMALL_SIDE:
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        _replace_first_convolution(net, channels)
    least = _LEAST_SIDE[name]
    if min(height, width) >= least:
        return net
    return nn.Sequential(nn.Upsample((max(height, least), max(width, least)), mode="bilinear"), net)


def _replace_first_convolution(net: nn.Module, channels: int) -> None:
    path, old = next((path, m) for path, m in net.named_modules() if isinstance(m, nn.Conv2d))
    same: Any = {name: getattr(old, name) for name in ("out_channels", "kernel_size", "stride", "padding")}
    net.set_submodule(path, nn.Conv2d(channels, bias=old.bias is not None, **same))
