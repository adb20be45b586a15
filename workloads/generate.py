"""Let a language model continue a text, character by character.

python train.py --dataset text --model gpt --save model.pt

python -m workloads.generate model.pt --prompt "def "
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor, nn

from records.errors import UsageError, between
from records.output import exit_code_of, unread_output_is_no_error
from workloads.model_files import load


@dataclass(frozen=True)
class Settings:
    """What is continued, and how."""

    model: tyro.conf.Positional[str]
    """The file that train.py --save has written, of a run on text."""
    prompt: str = "def "
    """The text that is continued."""
    n_characters: int = 500
    """How many characters follow it."""
    temperature: float = 0.8
    """Of the distribution that each is drawn from: with less, likely ones come more often; with 0, always the
    likeliest."""
    top_k: int = 0
    """Draw among the so many likeliest; 0: among all."""
    seed: int = 0
    """Of what is drawn."""


def continued(settings: Settings) -> Iterator[str]:
    """Yield the prompt, and then one character after the other. Raises UsageError."""
    between(settings, "n_characters", 0)
    between(settings, "temperature", 0)
    between(settings, "top_k", 0)
    between(settings, "seed", 0, 2**63 - 1)
    model, made_with = load(settings.model)
    vocabulary = made_with.vocabulary
    if vocabulary is None:
        raise UsageError(f"{settings.model}: its model was not trained on text; give one of --dataset text or textfile")
    if strange := sorted({*settings.prompt} - {*vocabulary}):
        raise UsageError(f"--prompt: the text of the training has no {', '.join(map(repr, strange))}; leave it out")
    if not settings.prompt:
        raise UsageError("--prompt: is empty; give one character or more")
    context = made_with.input_shape[0]
    numbers = torch.tensor([vocabulary.index(character) for character in settings.prompt])
    yield settings.prompt
    generator = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.n_characters):
        numbers = numbers[-context:]
        number = next_token(model, numbers, settings, generator)
        numbers = torch.cat([numbers, number])
        yield vocabulary[int(number)]


@torch.no_grad()
def next_token(model: nn.Module, tokens: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """Draw the token (1,) that follows `tokens` (T,)."""
    logits = model(tokens[None])[0, -1].double()
    if settings.top_k:
        logits[logits < logits.topk(min(settings.top_k, len(logits))).values[-1]] = -torch.inf
    if not settings.temperature:
        return logits.argmax()[None]
    return torch.multinomial((logits / settings.temperature).softmax(0), 1, generator=generator)


def main() -> int:
    """Print the text as it comes; return the exit code."""
    settings = tyro.cli(Settings, description=__doc__, use_underscores=True)
    with unread_output_is_no_error() as output:
        try:
            for part in continued(settings):
                print(part, end="", flush=True)
            print()
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print()  # it is long enough
    return exit_code_of(output, 0)


if __name__ == "__main__":
    sys.exit(main())
