"""LeNet (LeCun et al., 1998), with ReLU and max pooling."""

from torch import nn

from gradwire.core.records.errors import UsageError


def build(input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return the network. Raises UsageError."""
    channels, height, width = input_shape
    if min(height, width) < 8:
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
