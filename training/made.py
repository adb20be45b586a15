"""The model of a run, made of its options."""

import torch
from torch import nn

from training.options import Options
from workloads import models
from workloads.datasets import Data


def build_model(options: Options, data: Data) -> nn.Module:
    """Return the model with the initial weights of `options.seed`. Raises UsageError."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        return models.build(options.model, data.input_shape, data.n_classes).to(options.torch_dtype)
