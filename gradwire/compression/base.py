"""What codecs are made of: the base classes, and functions that several of them call."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gradwire.compression.codec import FEEDBACK as FEEDBACK
from gradwire.compression.codec import LAWS as LAWS
from gradwire.compression.codec import LOSSLESS as LOSSLESS
from gradwire.compression.codec import ROUNDED as ROUNDED
from gradwire.compression.codec import UNBIASED as UNBIASED
from gradwire.compression.codec import Code as Code
from gradwire.compression.codec import Codec as Codec
from gradwire.compression.codec import Setting as Setting
from gradwire.compression.codec import index_dtype as index_dtype
from gradwire.compression.packing import pack as pack
from gradwire.compression.packing import unpack as unpack
from gradwire.core.records.errors import RunFailed
from gradwire.core.records.options import option
from gradwire.core.strategy.codes import DENSE as DENSE
from gradwire.core.strategy.codes import GATHERED as GATHERED
from gradwire.core.strategy.codes import KINDS as KINDS
from gradwire.core.strategy.codes import LINEAR as LINEAR
from gradwire.core.strategy.layout import Layout


@dataclass(kw_only=True)
class ErrorFeedback(Codec, ABC):
    """A codec that keeps the error of each code, and adds it to the next vector.

    Law: the decoded code plus the kept error equals the vector plus `error_decay` times the error kept before.
    """

    error_decay: float = option(1.0, least=0, most=1)
    """beta: the share of what was kept that is added to the next vector; below 1 old errors fade, as in SparseLoCo."""

    law = FEEDBACK

    def plus_error(self, vector: torch.Tensor, error: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vector plus beta times the error."""
        return torch.add(vector, error, alpha=self.error_decay, out=out)


@dataclass(kw_only=True)
class Linear(Codec, ABC):
    """A codec whose codes are linear in the vector, so that what all ranks send can be averaged on the way."""

    kind = LINEAR

    @abstractmethod
    def reduce(self, vector: torch.Tensor) -> Iterator[torch.Tensor]:
        """Replace `vector` [n] by the decoded mean over all ranks.

        Yields flat vectors, each of which the caller replaces by its mean over all ranks before it goes on.
        """


def check_finite(vector: torch.Tensor, layout: Layout, indices: torch.Tensor | None = None) -> None:
    """Check that a gradient has neither NaN nor infinity. Raises RunFailed, which names the tensor.

    With `indices` [k]: the vector has the values of these elements, each a gradient plus the error kept of others.
    """
    if vector.is_meta or math.isfinite(float(vector.sum())):  # NaN and infinity spread to the sum
        return
    wrong = torch.isfinite(vector).logical_not().nonzero().flatten()
    if not len(wrong):
        return
    first = int(wrong[0])
    if indices is None:
        name, n = layout.name_at(first), vector.numel()
        why = f"{name} has the value {float(vector[first])}, and {len(wrong)} of {n} elements are not finite"
    else:
        largest = f"above the largest {str(vector.dtype).removeprefix('torch.')}"
        why = f"{layout.name_at(int(indices[first]))} plus what was kept of those before it is {largest}"
    raise RunFailed(f"the gradient of {why}; take a smaller --lr, or bound the gradient with --clip_norm")
