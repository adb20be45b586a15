"""The networks of the benchmarks, their batches and optimizer: `python train.py --model benchmarks.networks:mlp`."""

from collections.abc import Callable
from math import prod

import torch
from torch import nn

from gradwire.language.gpt import GPT

Batch = tuple[torch.Tensor, torch.Tensor]
INPUT_SHAPE, N_CLASSES = (1, 28, 28), 10


def cnn(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return the well known MNIST CNN without its dropout: 1.2 million parameters for 28 x 28 pixels."""
    channels, height, width = input_shape
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128), nn.ReLU(), nn.Linear(128, n_classes)),
    )


def mlp(input_shape: tuple[int, ...], n_classes: int, width: int = 2048) -> nn.Module:
    """Return two hidden layers: of 2048, 5.8 million parameters for 28 x 28 pixels; of 512, 0.7 million."""
    first, second = nn.Linear(prod(input_shape), width), nn.Linear(width, width)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, n_classes))


MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": cnn, "mlp": mlp, "gpt": GPT}
CONTEXT, N_TOKENS = 64, 106  # of the text of `--dataset text`


def new_network(model: str, **options: int) -> nn.Module:
    """Return the network, its parameters the same in every process."""
    torch.manual_seed(0)
    return MODELS[model](*(((CONTEXT,), N_TOKENS) if model == "gpt" else (INPUT_SHAPE, N_CLASSES)), **options)


def new_optimizer(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer that all sides have."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def new_batch(rank: int, batch_size: int, model: str = "cnn") -> Batch:
    """Return the batch that a rank takes in every step."""
    torch.manual_seed(1 + rank)
    if model == "gpt":
        tokens = torch.randint(N_TOKENS, (batch_size, CONTEXT + 1))
        return tokens[:, :-1], tokens[:, 1:]
    return torch.rand(batch_size, *INPUT_SHAPE), torch.randint(N_CLASSES, (batch_size,))
