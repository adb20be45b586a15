"""The codec of decoupled momentum: a part of the strategy `demo`, not of the table."""

import math
from dataclasses import dataclass

import torch

from gradwire.compression.base import GATHERED, Code, Codec, check_finite, index_dtype, pack, unpack


@dataclass(kw_only=True)
class FastComponents(Codec):
    """Sends the largest coefficients of the momentum M in each chunk of a part; the last chunk may be shorter.

    As the transform is linear and orthonormal, M is kept as its coefficients. So M loses what is sent, bit for bit.
    """

    chunk_size: int = 64
    top_k: int = 4
    momentum_decay: float = 0.999

    kind = GATHERED
    values = "w (min(top_k, chunk_size) floor(n / chunk_size) + min(top_k, n % chunk_size))"
    indices = "i (min(top_k, chunk_size) floor(n / chunk_size) + min(top_k, n % chunk_size))"
    state = ("M",)

    def setup(self) -> None:
        """M <- 0; find the runs of chunks of one length, and make a matrix for each length."""
        self.M, self.index_dtype, c = self.kept(), index_dtype(self.layout.n), self.chunk_size
        cuts = [(part.start, part.stop - (part.stop - part.start) % c, part.stop) for part in self.parts.slices]
        runs = [run for a, b, d in cuts for run in ((slice(a, b), c), (slice(b, d), d - b))]
        self.runs = [(run, length) for run, length in runs if run.start < run.stop]
        self.matrices = {length: dct(length).to(self.device, self.dtype) for _, length in self.runs}

    def encode(self, vector: torch.Tensor) -> Code:
        """M <- beta M + DCT(vector); return q, the largest of M; M <- M - q."""
        check_finite(vector, self.layout)
        found = []
        for run, length in self.runs:
            M = self.M[run].view(-1, length)
            M.mul_(self.momentum_decay).add_(vector[run].view(-1, length) @ self.matrices[length].T)
            first = torch.arange(run.start, run.stop, length, device=M.device).unsqueeze(1)
            found.append((M.abs().topk(min(self.top_k, length)).indices + first).flatten())
        sent = torch.cat(found)
        values, short = self.M.index_select(0, sent), sent.to(self.index_dtype)
        self.M.index_fill_(0, sent, 0.0)
        return Code(pack(values, short), indices=short.nbytes)

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return IDCT(q)."""
        k = int(self.count()[0]) // self.dtype.itemsize
        values, indices = unpack(data, (k, self.dtype), (k, self.index_dtype))
        q = self.empty().zero_().index_copy_(0, indices.long(), values)
        out = q if out is None else out
        for run, length in self.runs:
            out[run].view(-1, length).copy_(q[run].view(-1, length) @ self.matrices[length])
        return out


def dct(n: int) -> torch.Tensor:
    """Return the matrix [n, n] of the orthonormal cosine transform (DCT-II), whose inverse is its transpose."""
    i = torch.arange(n, dtype=torch.float64)
    matrix = torch.cos(math.pi / n * torch.outer(i, i + 0.5)) * math.sqrt(2 / n)
    matrix[0] /= math.sqrt(2)
    return matrix
