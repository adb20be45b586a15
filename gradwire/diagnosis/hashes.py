"""The input of `gradwire.diagnosis.why`: for each step, hashes of a rank's batch, parameters and gradients.

Of each tensor a hash of all bytes is kept, its norm, and the values of some elements, spread over it: a hash says
whether two runs differ, the elements say how, and the norm bounds the differences of the other elements. All are as
fast as memory is read.
"""

import io
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.updater import Updater
from gradwire.core.transports.messages import as_vector

ELEMENTS = 32  # of each tensor, whose values are kept
_UNKNOWN = torch.full((ELEMENTS,), torch.nan, dtype=torch.float64)
_ROW = 8192  # bytes
Arrays = dict[str, np.ndarray]


class Hashes:
    """The hashes of one rank. `layout`: the tensors of x."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # From the first to the last; of a shorter tensor, some of them again.
        self._at = [torch.linspace(0, size - 1, ELEMENTS, dtype=torch.float64).long() for size in layout.sizes]
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)
        self._batch = 0

    def batch(self, *tensors: torch.Tensor) -> None:
        """Note a piece of the batch of the next gradient."""
        for tensor in tensors:
            self._batch = _hash(as_vector(tensor).cpu(), self._batch)

    def gradient(self, step: int, x: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], n: int) -> None:
        """Note the result of a worker's step: `gradients`, a mean over `n`, of the parameters `x`."""
        self._note("g", gradients)
        self._note("x", x)
        for name, value in (("step", step), ("n", n), ("batch", self._batch)):
            self._rows[name].append(value)
        self._batch = 0

    def end(self, x: Sequence[torch.Tensor]) -> None:
        """Note the parameters with which the run has ended."""
        self._note("x", x)

    def update(self, updater: Updater) -> None:
        """Hash the gradient of an update: of all parameters, or of a part of them."""
        gradients: Sequence[torch.Tensor | None] = [p.grad for p in updater.parameters]
        if [tuple(p.shape) for p in updater.parameters] != list(self._layout.shapes):  # one vector, or slices of it
            parts = [g for g in gradients if g is not None]
            g = torch.cat(parts) if parts else None
            is_whole = g is not None and g.numel() == self._layout.n
            gradients = self._layout.views(g) if g is not None and is_whole else [None] * len(self._layout.names)
        self._note("u", gradients)
        self._rows["version"].append(updater.version)

    def arrays(self) -> Arrays:
        """Return all of it, one row a step, of x one more, and the tensors' names: see `gradwire.diagnosis.why`."""
        return {"names": np.array(self._layout.names)} | {name: np.array(rows) for name, rows in self._rows.items()}

    def _note(self, name: str, tensors: Sequence[torch.Tensor | None]) -> None:
        vectors = [None if t is None else as_vector(t).cpu() for t in tensors]
        self._rows[name].append([0 if v is None else _hash(v) for v in vectors])
        norms = [np.nan if v is None else float(torch.linalg.vector_norm(v)) for v in vectors]
        self._rows[f"{name} norms"].append(norms)
        pairs = zip(vectors, self._at, strict=True)
        elements = torch.stack([_UNKNOWN if v is None else v[at] for v, at in pairs])
        self._rows[f"{name} elements"].append(elements.double().numpy())


def packed(ranks: Mapping[int, Arrays]) -> bytes:
    """Return the hashes of all ranks as a file."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {f"{rank} {name}": array for rank, named in ranks.items() for name, array in named.items()}
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _hash(vector: torch.Tensor, start: int = 0) -> int:
    """Return the CRC-32 of the sums of rows of bytes, as integers of 64 bits, and of the bytes that fill no row.

    Only words that change places within a row leave it as it is.
    """
    data = vector.view(torch.uint8).numpy()
    whole = data.size // _ROW * _ROW
    sums = data[:whole].view(np.uint64).reshape(-1, _ROW // 8).sum(axis=1)
    return zlib.crc32(data[whole:].data, zlib.crc32(sums.data, start))
