"""Text to learn a language model from: the tokens are its characters, a sample is a window of consecutive ones."""

import lzma
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gradwire.core.records.errors import UsageError
from gradwire.core.workloads.data import Data, Samples
from gradwire.language.task import LANGUAGE_MODEL

SHIPPED = Path(__file__).with_name("text.txt.xz")
CONTEXT = 64
_HELD_OUT = 10  # one part of this many, at the end


@dataclass
class Windows(Samples):
    """Windows of a text: x (B, length) int64 are characters, y (B, length) int64 the one that follows each of them."""

    text: Tensor  # the numbers of all characters, of the smallest type that holds them
    starts: Tensor  # (N,) int64: where each window begins
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def raw(self, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        """Copy the windows out of the text."""
        found = self.text[self.starts[indices, None] + torch.arange(self.length + 1)].long()
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()

    def subset(self, indices: Tensor) -> Self:
        """Return those at `indices`, of the same text."""
        return replace(self, starts=self.starts[indices])


def load_text(name: str, file: Path, context: int) -> Data:
    """Load the text of the repository, or with the name "textfile" that of `file`, in windows of `context` characters.

    The first nine tenths train, the rest is held out. The windows of a part are disjoint and follow each other: an
    epoch reads each character once, but those after the last whole window. Raises UsageError.
    """
    try:
        text = (lzma.decompress(SHIPPED.read_bytes()) if name == "text" else file.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"--data_dir {file}: cannot be read ({error.strerror}); give a file of text") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--data_dir {file}: is no UTF-8: byte {error.object[error.start]:#04x} at position {error.start}; "
            "convert it, such as with iconv -f latin1 -t utf-8"
        ) from error
    if not text:
        raise UsageError(f"--data_dir {file}: is empty; give a file of text")
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    vocabulary = np.flatnonzero(np.bincount(codes))
    numbers = np.zeros(vocabulary[-1] + 1, dtype=np.uint8 if len(vocabulary) <= 256 else np.int32)
    numbers[vocabulary] = np.arange(len(vocabulary))
    whole = torch.from_numpy(numbers[codes])
    held_out = len(whole) // _HELD_OUT
    if held_out < context + 1:
        raise UsageError(
            f"--context {context}: {name if name == 'text' else file} has {len(whole)} characters, of which the last "
            f"{held_out} are held out, and a window needs {context + 1}; take a longer text or a smaller --context"
        )
    parts = whole.split([len(whole) - held_out, held_out])
    train, test = (Windows(part, torch.arange(0, len(part) - context, context), context) for part in parts)
    return Data(
        name, len(vocabulary), (context,), (), (), train, test,
        task=LANGUAGE_MODEL, vocabulary="".join(map(chr, vocabulary)),
    )  # fmt: skip
