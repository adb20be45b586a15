"""The networks of the benchmarks: `python train.py --model benchmarks.networks:mlp`."""

from math import prod

from torch import nn


def cnn(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return the well known MNIST CNN without its dropout: 1.2 million parameters for 28 x 28 pixels."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Linear(128, n_classes),
    )


def mlp(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return two hidden layers of 2048: 5.8 million parameters for 28 x 28 pixels."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), 2048),
        nn.ReLU(),
        nn.Linear(2048, 2048),
        nn.ReLU(),
        nn.Linear(2048, n_classes),
    )
