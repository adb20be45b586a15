"""Models in files: FILE.safetensors, or with any other name torch's own format. Both are ordinary state_dicts.

What a model was made with stands beside it: in the metadata of safetensors; in torch's format as an attribute of the
OrderedDict, which `load_state_dict` does not look at.
"""

import importlib
import io
import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import gradwire.wings  # noqa: F401 - a file may name a model of theirs
from gradwire.core.records.errors import UsageError, import_extra, one_line
from gradwire.core.workloads import models
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.options import DataOptions

_MADE_WITH = "made_with"


def check_format(path: str) -> None:
    """Check that `path`, with or without the option that names it, can be written or read. Raises UsageError."""
    if path.endswith(".safetensors"):
        import_extra("safetensors.torch", path, "safetensors", "safetensors")


def to_bytes(model: nn.Module, path: str, options: DataOptions, data: Data) -> bytes:
    """Return the content of the file `path` for the model of a run with these options and data."""
    made_with = json.dumps({
        "model": options.model, "model_options": options.model_options, "input_shape": data.input_shape,
        "n_classes": data.n_classes, "vocabulary": data.vocabulary,
    })  # fmt: skip
    # Cloned: safetensors refuses tied tensors, which share memory.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    if path.endswith(".safetensors"):
        content: bytes = importlib.import_module("safetensors.torch").save(tensors, {_MADE_WITH: made_with})
        return content
    state = OrderedDict(tensors)
    setattr(state, _MADE_WITH, made_with)
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def load(path: str, own: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model of a file, in evaluation mode, and the options that made it. Raises UsageError.

    A file may name code, but only the user can have it called: `own` is the yourmodule:function that the user gives.
    """
    check_format(path)
    with _refusing(path):
        state, made_with = _read(path)
        name, model_options, shape = made_with["model"], made_with["model_options"], tuple(made_with["input_shape"])
    if own is None and isinstance(name, str) and ":" in name:
        raise UsageError(f"{path}: its model is {name!r}, which is code; if you trust it, name it by --model")
    if own not in (None, name):
        raise UsageError(f"--model {own}: {path} has the model {name!r}; leave it out, or give that")
    with _refusing(path):
        model = models.build(name, shape, made_with["n_classes"], model_options)
        model.load_state_dict(state)
    return model.eval(), made_with


def _read(path: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if path.endswith(".safetensors"):
        with importlib.import_module("safetensors").safe_open(path, "pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return state, json.loads(file.metadata()[_MADE_WITH])
    state = torch.load(path, map_location="cpu", weights_only=True)
    return state, json.loads(getattr(state, _MADE_WITH))


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever is raised by bytes that are no such file
        reason = one_line(error).split(". ")[0]  # torch then says how to execute code from it
        raise UsageError(f"{path}: is no model that --save wrote ({reason}); give one") from error
