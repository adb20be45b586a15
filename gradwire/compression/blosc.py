"""Blosc2: lossless. Bytes or bits of like weight are put side by side (shuffle), and what repeats is written shorter.

Floating-point gradients have random fractions, but signs and exponents that repeat: so it gains a quarter or so. It is
the library Blosc2 (Alted, 2010, Why modern CPUs are starving and what can be done about it, and blosc.org), with its
Zstandard. Four bytes of a check sum follow the compressed block: Blosc2 has none.
"""

import importlib
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradwire.compression.base import GATHERED, LOSSLESS, Code, Codec, check_finite
from gradwire.core.records.errors import RunFailed, UsageError, as_usage_error
from gradwire.core.records.options import option

_FILTERS = {"bit": "BITSHUFFLE", "byte": "SHUFFLE", "none": "NOFILTER"}
_CHECK_SUM = 4  # bytes
_OVERHEAD = 32  # bytes that Blosc2 adds to what cannot be compressed
_MOST = 2**31 - 1 - _OVERHEAD  # bytes of a block


@dataclass(kw_only=True)
class Blosc(Codec):
    """Compresses the vector without loss, by the library Blosc2 with Zstandard."""

    level: int = option(1, least=0, most=9)
    """How hard it tries, from 0 (not at all) to 9; 1 is the fastest, and gains as much for most gradients."""
    shuffle: str = "byte"
    """What is put side by side before: bytes of like weight ("byte"), bits of like weight ("bit"), or "none"."""

    kind = GATHERED
    law = LOSSLESS
    values = "w n"
    headers = "36"
    exact_size = False
    on_meta = False

    def check(self) -> None:
        """The shuffle is one that Blosc2 knows, and it is installed."""
        if self.shuffle not in _FILTERS:
            raise UsageError(f"--shuffle {self.shuffle}: must be one of {', '.join(_FILTERS)}")
        what = "the codec blosc needs Blosc2, which cannot be loaded"
        with as_usage_error(what, ": pip install blosc2", ImportError):
            importlib.import_module("blosc2")

    def setup(self) -> None:
        """Load the library. Raises RunFailed if the vector is too long for it."""
        self.library: Any = importlib.import_module("blosc2")  # here, for most runs do not need it
        if self.layout.n * self.dtype.itemsize > _MOST:
            raise RunFailed(f"a vector of {self.layout.n} elements: Blosc2 takes at most {_MOST} bytes at once")

    def encode(self, vector: torch.Tensor) -> Code:
        """Compress the vector; the bytes of the frame around the compressed elements count as headers."""
        check_finite(vector, self.layout)
        if not self.layout.n:
            return Code(vector)
        raw = vector.contiguous().cpu().numpy().view(np.uint8)
        block = self.library.compress2(
            raw,
            codec=self.library.Codec.ZSTD,
            clevel=self.level,
            typesize=self.dtype.itemsize,
            filters=[self.library.Filter[_FILTERS[self.shuffle]]],
            filters_meta=[0],
            nthreads=1,  # the ranks share the cores
        )
        code = bytearray(block) + zlib.crc32(block).to_bytes(_CHECK_SUM, "little")
        return Code(torch.frombuffer(code, dtype=torch.uint8).to(self.device), headers=_OVERHEAD + _CHECK_SUM)

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decompress a code. Raises RunFailed if the check sum or the length is wrong."""
        code = data.contiguous().cpu().numpy().view(np.uint8)
        vector = torch.empty(self.layout.n, dtype=self.dtype)
        if len(code) or len(vector):
            self.check_code(code, vector.nbytes)
            self.library.decompress2(code[:-_CHECK_SUM], dst=vector.numpy(), nthreads=1)
        return vector.to(self.device) if out is None else out.copy_(vector)

    def check_code(self, code: np.ndarray, nbytes: int) -> None:
        """Check that a code is complete, and of a vector of `nbytes` bytes. Raises RunFailed."""
        block, check_sum = code[:-_CHECK_SUM], code[-_CHECK_SUM:]
        if len(block) < _OVERHEAD or zlib.crc32(block.data) != int.from_bytes(check_sum.tobytes(), "little"):
            raise RunFailed(f"a code of {len(code)} bytes came that is not Blosc2's: damaged, or sent by another codec")
        found, compressed, _ = self.library.get_cbuffer_sizes(block)
        if (found, compressed) != (nbytes, len(block)):
            raise RunFailed(f"a code came that holds {found} bytes, and {nbytes} were expected: sent by another layout")
