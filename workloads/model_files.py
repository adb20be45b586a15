"""Models in files, with what they were made with: FILE.safetensors, or any other name for torch's own format.

Both hold an ordinary state_dict. What the model was made with stands beside it: in the metadata of safetensors, and as
an attribute of the OrderedDict that torch writes, which `load_state_dict` does not look at.
"""

import importlib
import io
import json
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from records.errors import UsageError, one_line
from workloads import models
from workloads.data import Data

_KEY = "made_with"
_SAFE = ".safetensors"


@dataclass(frozen=True)
class MadeWith:
    """What a model was made with, enough to build it again."""

    model: str
    model_options: str
    dtype: str
    input_shape: tuple[int, ...]
    n_classes: int
    vocabulary: str | None

    @classmethod
    def of(cls, model: str, model_options: str, dtype: str, data: Data) -> "MadeWith":
        """Return that of a model for a data set."""
        return cls(model, model_options, dtype, data.input_shape, data.n_classes, data.vocabulary)


def check_format(path: str) -> None:
    """Check that a model can be written to `path`: safetensors is an optional package. Raises UsageError."""
    if path.endswith(_SAFE):
        _safetensors(f"--save {path}")


def to_bytes(model: nn.Module, path: str, made_with: MadeWith) -> bytes:
    """Return the content of the file `path` for a model. Raises UsageError."""
    # Cloned: the tensors are views of the flat vector, and a view is saved with all that lies behind it.
    state = OrderedDict((name, tensor.detach().cpu().clone()) for name, tensor in model.state_dict().items())
    about = json.dumps(asdict(made_with))
    if path.endswith(_SAFE):
        whole = {name: tensor.contiguous() for name, tensor in state.items()}
        content: bytes = _safetensors(f"--save {path}").save(whole, {"format": "pt", _KEY: about})
        return content
    setattr(state, _KEY, about)
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def load(path: str) -> tuple[nn.Module, MadeWith]:
    """Return the model of a file, in evaluation mode, and what it was made with. Raises UsageError."""
    try:
        state, about = _load_safe(path) if path.endswith(_SAFE) else _load_torch(path)
        made_with = MadeWith(**json.loads(about))
        shape = tuple(made_with.input_shape)
        model = models.build(made_with.model, shape, made_with.n_classes, made_with.model_options)
        model.load_state_dict(state)
    except UsageError:
        raise
    except Exception as error:  # whatever is raised by bytes that are no such file
        reason = one_line(error).split(". ")[0]  # torch then says how to execute code from it
        raise UsageError(f"{path}: is no model that --save wrote ({reason}); give one") from error
    return model.to(getattr(torch, made_with.dtype)).eval(), made_with


def _load_torch(path: str) -> tuple[dict[str, Tensor], str]:
    state = torch.load(path, map_location="cpu", weights_only=True)
    return state, getattr(state, _KEY)


def _load_safe(path: str) -> tuple[dict[str, Tensor], str]:
    with _safetensors(path).safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()[_KEY]  # noqa: SIM118


def _safetensors(what: str) -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except Exception as error:
        raise UsageError(f"{what}: needs safetensors ({one_line(error)}); pip install safetensors") from error
