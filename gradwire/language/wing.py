"""The wing of language: text, a decoder for it, and the task of its next token, for the tables of the core."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gradwire.core.launchers.launcher import Launcher
from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.records.options import option
from gradwire.core.strategy.factories import ByTensor
from gradwire.core.training.optimizers import OF_TENSORS
from gradwire.core.training.options import Panel
from gradwire.core.training.wing import Wing
from gradwire.core.workloads.data import Data
from gradwire.core.workloads.datasets import DATASETS, Source
from gradwire.core.workloads.models import MODELS, Model
from gradwire.core.workloads.tasks import TASKS
from gradwire.language.task import TASK


def _load(name: str, options: Any, data_dir: Path, seed: int) -> Data:
    from gradwire.language.text import CONTEXT, load_text

    return load_text(name, data_dir, CONTEXT if options.context is None else options.context)


def _muon(*arguments: Any) -> ByTensor:
    from gradwire.language.muon import muon_and_adamw

    return muon_and_adamw(*arguments)


def _build_gpt(input_shape: tuple[int, ...], n_classes: int, options: str) -> nn.Module:
    from gradwire.core.workloads.model_options import options_for
    from gradwire.language.gpt import GPT

    try:
        return GPT(input_shape, n_classes, **options_for("gpt", options, GPT))
    except RuntimeError as error:
        raise UsageError(f"--model_options {options}: {one_line(error)}; take smaller ones") from error


TEXTS = ("text", "textfile")
DATASETS.update({name: Source(partial(_load, name)) for name in TEXTS})
MODELS["gpt"] = Model(_build_gpt, takes_text=True, has_options=True)
TASKS[TASK.name] = TASK
OF_TENSORS["muon"] = _muon


@dataclass(frozen=True, kw_only=True)
class TextOptions(Panel):
    """How text is cut."""

    context: int | None = option(None, least=1)
    """Characters in a sample of text. Default: 64."""


class Language(Wing):
    """Text."""

    title = "text"
    panel = TextOptions

    def resolve(self, options: TextOptions, launcher: Launcher) -> TextOptions:
        """Check that there is text."""
        if options.context is not None and options.dataset not in TEXTS:
            able = ", ".join(TEXTS)
            raise UsageError(f"--context {options.context}: it is only for --dataset {able}; leave it out")
        return options


WING = Language()
