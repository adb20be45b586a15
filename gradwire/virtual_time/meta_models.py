"""Models on torch's meta device, which have sizes and no elements: the lengths of their vectors, and operations."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.tensors import float_buffers, layout_of, trained
from gradwire.core.workloads import models
from gradwire.images.torchvision import import_torchvision
from gradwire.options import Options
from gradwire.virtual_time.calibration import flops_of
from gradwire.virtual_time.shares import shares_of
from gradwire.virtual_time.steps import Sizes

IMAGES, CLASSES = (3, 224, 224), 1000  # the input and classes of a model by name


def build(options: Options) -> nn.Module:
    """Return the model that `--model` names on the meta device: torchvision's for ImageNet, or yourmodule:function."""
    name = options.model
    if name == "gpt":
        raise UsageError("--model gpt: takes no images, as models on the meta device do; give --parameters instead")
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        if name in models.MODELS or ":" in name:
            return models.build(name, IMAGES, CLASSES).to(options.torch_dtype)
        made = import_torchvision(f"--model {name}").models
        if name not in made.list_models(module=made):
            raise UsageError(f"--model {name}: unknown; torchvision.models.list_models() has the names")
        net: nn.Module = made.get_model(name, weights=None).to(options.torch_dtype)
    return net


def sizes_of(options: Options, parameters: float | None, layers: int = 1) -> Sizes:
    """Return the lengths of the model's vectors; without a name it has `layers` equal layers. Raises UsageError."""
    if parameters is not None:
        least, longer = divmod(int(parameters), layers)
        shapes = tuple((least + (i < longer),) for i in range(layers))
        tensors = Layout(tuple(f"layers.{i}" for i in range(layers)), shapes)
        return Sizes(int(parameters), tensors=tensors, shares=(1 / layers,) * layers)
    model = build(options)
    layout = layout_of(model)
    try:
        x = torch.zeros(1, *IMAGES, dtype=options.torch_dtype, device="meta")
        shares = shares_of(model, lambda: model(x))
    except Exception:  # it does not take images: `count_flops` says so where it matters
        shares = tuple(p.numel() / layout.n for p in trained(model))
    return Sizes(layout.n, sum(b.numel() for b in float_buffers(model)), layout, shares)


def count_flops(options: Options, parameters: float | None, samples: int) -> dict[str, float]:
    """Return the floating-point operations of the two passes of a step with `samples` samples.

    If only the number of parameters is known: 2 forward and 4 backward for each parameter and sample.
    Raises UsageError.
    """
    if parameters is not None:
        return {"forward": 2 * parameters * samples, "backward": 4 * parameters * samples}
    model = build(options)
    try:
        x = torch.zeros(samples, *IMAGES, dtype=options.torch_dtype, device="meta")
        y = torch.zeros(samples, dtype=torch.int64, device="meta")
        return flops_of(lambda: F.cross_entropy(_first(model(x)), y))
    except Exception as error:
        raise UsageError(
            f"--model {options.model}: its operations cannot be counted ({one_line(error)}); give --compute"
        ) from error


def _first(output: Any) -> torch.Tensor:
    """Return the logits of a model: the first of several outputs, as googlenet and inception_v3 have."""
    logits = output if isinstance(output, torch.Tensor) else output[0]
    assert isinstance(logits, torch.Tensor)
    return logits
