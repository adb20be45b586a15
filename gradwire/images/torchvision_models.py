"""Torchvision's models, fitted to small images."""

from typing import Any

from torch import nn

from gradwire.images.torchvision import import_torchvision

_SIDE_32 = ("mobilenet_v2", "resnet18", "resnet34", "resnet50", "vgg11")
LEAST_SIDE = {**dict.fromkeys(_SIDE_32, 32), "alexnet": 64}
"""The models, with the least side of an image in pixels; smaller ones are enlarged."""
_LARGEST_SMALL_SIDE = 64


def build(name: str, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
    """Return torchvision's model `name`, fitted to small images. Raises UsageError."""
    models = import_torchvision(f"--model {name}").models
    net: nn.Module = getattr(models, name)(weights=None, num_classes=n_classes)
    channels, height, width = input_shape
    if name.startswith("resnet") and max(height, width) <= _LARGEST_SMALL_SIDE:
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        _replace_first_convolution(net, channels)
    least = LEAST_SIDE[name]
    if min(height, width) >= least:
        return net
    return nn.Sequential(nn.Upsample((max(height, least), max(width, least)), mode="bilinear"), net)


def _replace_first_convolution(net: nn.Module, channels: int) -> None:
    path, old = next((path, m) for path, m in net.named_modules() if isinstance(m, nn.Conv2d))
    same: Any = {name: getattr(old, name) for name in ("out_channels", "kernel_size", "stride", "padding")}
    net.set_submodule(path, nn.Conv2d(channels, bias=old.bias is not None, **same))
