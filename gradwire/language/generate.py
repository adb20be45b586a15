"""Let a model that train.py --save has written continue a text, character by character.

python train.py --dataset text --model gpt --save model.pt

python -m gradwire generate model.pt --prompt "def "
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from gradwire.arguments import read_options
from gradwire.checkpoints.model_files import load
from gradwire.core.records.errors import UsageError, between
from gradwire.core.workloads.lookup import blamed_on
from gradwire.ending import run_command


@dataclass(frozen=True)
class Settings:
    """What is continued, and how."""

    file: Annotated[str, Positional, arg(metavar="FILE")]
    """The file of a model of text."""
    model: str | None = None
    """yourmodule:function of a model that is your own; the file must name the same."""
    prompt: str = "def "
    """The text that is continued."""
    n_characters: int = 500
    """How many characters follow it."""
    temperature: float = 0.8
    """With less, likely characters come more often; with 0, always the likeliest."""
    top_k: int = 0
    """Draw among the so many likeliest; 0: among all."""
    seed: int = 0
    """Of what is drawn."""


@torch.no_grad()
def continued(settings: Settings) -> Iterator[str]:
    """Yield the prompt, and then one character after the other. Raises UsageError."""
    for option in ("n_characters", "temperature", "top_k", "seed"):
        between(settings, option, 0, 2**62)
    model, made_with = load(settings.file, settings.model)
    vocabulary, context = made_with["vocabulary"], made_with["input_shape"][0]
    if vocabulary is None:
        raise UsageError(f"{settings.file}: its model was not trained on text; give one of --dataset text or textfile")
    strange = sorted({*settings.prompt} - {*vocabulary})
    if strange or not settings.prompt:
        why = f"the text of the training has no {', '.join(map(repr, strange))}" if strange else "is empty"
        raise UsageError(f"--prompt: {why}; give one or more of its {len(vocabulary)} characters")
    tokens = [vocabulary.index(character) for character in settings.prompt]
    yield settings.prompt
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.n_characters):
        with blamed_on(f"{settings.file}: its model"):
            logits = model(torch.tensor([tokens[-context:]]))[0, -1].double()
        if settings.top_k:
            logits[logits < logits.topk(min(settings.top_k, len(logits))).values[-1]] = -torch.inf
        if settings.temperature:
            p = ((logits - logits.max()) / settings.temperature).softmax(0)
            tokens.append(int(torch.multinomial(p, 1, generator=generator)))
        else:
            tokens.append(int(logits.argmax()))
        yield vocabulary[tokens[-1]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the text as it comes; return the exit code."""

    def work() -> None:
        for part in continued(read_options(sys.argv[1:] if arguments is None else arguments, Settings, str(__doc__))):
            print(part, end="", flush=True)
        print()

    return run_command(work)
