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


def deep(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return twelve hidden layers of 512 that are alike: 3.3 million parameters for 28 x 28 pixels."""
    hidden = [layer for _ in range(11) for layer in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), 512), nn.ReLU(), *hidden, nn.Linear(512, n_classes))


def small_cnn(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return the small MNIST CNN of many examples without its dropout: 21,840 parameters for 28 x 28 pixels."""
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2), 50),
        nn.ReLU(),
        nn.Linear(50, n_classes),
    )
