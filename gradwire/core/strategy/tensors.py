"""The tensors of a model by kind, and vectors of their elements or bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from gradwire.core.strategy.layout import Layout


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters, a tied one once."""
    return [p for p in model.parameters() if p.requires_grad]


def layout_of(model: nn.Module) -> Layout:
    """Return the names and shapes of the trainable parameters, and which are embeddings."""
    layout = Layout.of(named := [(name, p) for name, p in model.named_parameters() if p.requires_grad])
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    return replace(layout, tables=frozenset(name for name, p in named if id(p) in tables))


def float_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the floating-point buffers, a shared one once."""
    return [b for b in model.buffers() if b.is_floating_point()]


def other_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Return the frozen parameters and the buffers without floating point, a shared one once."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return [*frozen, *(b for b in model.buffers() if not b.is_floating_point())]


def integer_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers of integers or booleans, a shared one once."""
    return [b for b in model.buffers() if not (b.is_floating_point() or b.is_complex())]


def integers_of(model: nn.Module) -> torch.Tensor:
    """Return the integer buffers as one int64 vector [k] on the CPU, a copy."""
    parts = [b.detach().reshape(-1).to("cpu", torch.int64) for b in integer_buffers(model)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def bytes_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes [k] of `tensors`, one after the other, a copy on the CPU (of meta tensors, on meta)."""
    parts = [t.detach().contiguous().view(-1).view(torch.uint8) for t in tensors if t.numel()]
    flat = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
    return flat if flat.is_meta else flat.cpu()


@torch.no_grad()
def copy_bytes_into(tensors: Sequence[torch.Tensor], data: torch.Tensor) -> None:
    """Copy what `bytes_of` returned into `tensors`. Raises RuntimeError if the lengths differ."""
    for tensor, part in zip(tensors, data.split([tensor.nbytes for tensor in tensors]), strict=True):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


@contextmanager
def parameters_from(model: nn.Module, x: torch.Tensor) -> Iterator[None]:
    """In the block, the trainable parameters of `model` are `x` [n]."""
    parameters = trained(model)
    kept = [p.data for p in parameters]
    for parameter, view in zip(parameters, views_of(x, parameters), strict=True):
        parameter.data = view
    try:
        yield
    finally:
        for parameter, data in zip(parameters, kept, strict=True):
            parameter.data = data


@torch.no_grad()
def copy_into(tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    """Copy the elements of a vector into `tensors`, one after the other. Raises RuntimeError if the lengths differ."""
    for tensor, view in zip(tensors, views_of(vector, tensors), strict=True):
        tensor.copy_(view)


def views_of(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of a vector with the shapes of `tensors`, one after the other."""
    parts = vector.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
