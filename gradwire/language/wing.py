"""The wing of language: text, a decoder for it, and the task of its next token, for the tables of the core."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.datasets import DATASETS, Source
from gradwire.core.workloads.lookup import options_for
from gradwire.core.workloads.models import MODELS, Model
from gradwire.core.workloads.tasks import TASKS
from gradwire.language.task import TASK


def _load(name: str, options: Any, data_dir: Path, seed: int) -> Data:
    from gradwire.language.text import CONTEXT, load_text

    return load_text(name, data_dir, CONTEXT if options.context is None else options.context)


def _build_gpt(input_shape: tuple[int, ...], n_classes: int, options: str) -> nn.Module:
    from gradwire.language.gpt import GPT

    try:
        return GPT(input_shape, n_classes, **options_for("gpt", options, GPT))
    except RuntimeError as error:
        raise UsageError(f"--model_options {options}: {one_line(error)}; take smaller ones") from error


DATASETS.update({name: Source(partial(_load, name), own_options=("context",)) for name in ("text", "textfile")})
MODELS["gpt"] = Model(_build_gpt, takes_text=True, has_options=True)
TASKS[TASK.name] = TASK
