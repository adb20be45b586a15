"""PowerSGD: a matrix is sent as the product of two thin ones, found by one step of power iteration.

A tensor of the shape (rows, ...) is a matrix M of rows x columns. With Q [columns x r], the one of the last step:

    M = gradient + e          the gradient and the kept error
    P = mean of M Q           all-reduce
    P = orthogonalize(P)
    Q_k = M^T P               this rank's
    Q = mean of Q_k           all-reduce
    result = P Q^T
    e = M - P Q_k^T

Algorithms 1 and 2 of Vogels, Karimireddy, Jaggi, 2019, PowerSGD: practical low-rank gradient compression for
distributed optimization, arXiv 1905.13727. A tensor for which P and Q are no smaller than itself, as any vector, is
averaged as it is, together with P.

The error is the part of this rank's own M that is lost (line 9 of algorithm 2). Other programs take e = M - result.
While all ranks weigh the same, the mean of e is the same, and so is every result. But then e also holds how far the
ranks' gradients lie apart. That adds up from step to step, and comes out in the first step in which the weights differ.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from gradwire.compression.base import Code, ErrorFeedback, Linear, check_finite, unpack
from gradwire.core.records.options import option
from gradwire.core.strategy.layout import Layout


@dataclass(kw_only=True)
class PowerSGD(ErrorFeedback, Linear):
    """Sends a matrix as the product of two of `rank` columns, the error being added to the next.

    In an all-reduce (`reduce`) all ranks share P and Q. On a server (`encode`) it is a low-rank code with error
    feedback that is local to each worker: every worker has a P and a Q of its own, which differs from the paper.
    """

    rank: int = option(2, least=1)
    """Columns r of P and Q."""
    warm_start: bool = True
    """Begin from the Q of the last step (else from random numbers at each step)."""

    values = "w min(n, min(rank, rows, columns) (rows + columns))"
    state = ("e", "Q", "steps")
    tensors_only = True

    def setup(self) -> None:
        """Find the matrices that are worth coding, and where P, Q and the plain tensors lie in a code; e = 0."""
        self.coded: list[tuple[slice, tuple[int, int]]] = []  # where a matrix lies, and its rows and columns
        self.plain: list[slice] = []
        P, plain, Q = list[tuple[int, ...]](), list[tuple[int, ...]](), list[tuple[int, ...]]()  # shapes
        for where, shape, n in zip(self.parts.slices, self.parts.shapes, self.parts.sizes, strict=True):
            rows = shape[0] if n and len(shape) > 1 else 1
            columns = n // rows
            r = min(self.rank, rows, columns)
            if r * (rows + columns) < n:
                self.coded.append((where, (rows, columns)))
                P.append((rows, r))
                Q.append((columns, r))
            else:
                self.plain.append(where)
                plain.append((n,))
        # The layouts of the two means.
        self.first, self.second = (Layout(("",) * len(shapes), tuple(shapes)) for shapes in (P + plain, Q))
        self.e = self.kept()
        self.Q = torch.zeros(self.second.n, dtype=self.dtype, device=self.device)
        self.steps = 0

    def encode(self, vector: torch.Tensor) -> Code:
        """Encode as one rank alone does."""
        step = self.step(vector)
        while True:
            try:
                next(step)
            except StopIteration as end:
                return Code(end.value)

    def reduce(self, vector: torch.Tensor) -> Iterator[torch.Tensor]:
        """Replace the matrices by approximations of low rank; yields P with the plain tensors, then Q."""
        self.decode((yield from self.step(vector)), vector)

    def step(self, vector: torch.Tensor) -> Generator[torch.Tensor, None, torch.Tensor]:
        """Return the means of P, of the plain tensors and of Q, as one vector; yields vectors to be averaged."""
        check_finite(vector, self.layout)
        if not self.steps or not self.warm_start:
            self.Q = self.random()
        kept = self.plus_error(vector, self.e)
        Ms = self.matrices(kept)
        code = torch.empty(self.first.n + self.second.n, dtype=self.dtype, device=self.device)
        Ps, plain, Qs = self.split(code)
        for M, P, Q in zip(Ms, Ps, self.second.views(self.Q), strict=True):
            torch.mm(M, Q, out=P)
        for where, tensor in zip(self.plain, plain, strict=True):
            tensor.copy_(kept[where])
        yield code[: self.first.n]
        for M, P, Q in zip(Ms, Ps, Qs, strict=True):
            P.copy_(torch.linalg.qr(P).Q)  # an orthonormal basis, also if columns are zero or parallel
            torch.mm(M.T, P, out=Q)
            M.addmm_(P, Q.T, alpha=-1)  # e = M - P Q_k^T
        for where in self.plain:
            kept[where] = 0
        check_finite(kept, self.layout)
        second = code[self.first.n :]
        yield second
        self.e, self.Q = kept, second.clone()
        self.steps += 1
        return code

    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply P by Q^T."""
        (code,) = unpack(data, (self.first.n + self.second.n, self.dtype))
        out = self.empty() if out is None else out
        Ps, plain, Qs = self.split(code)
        for M, P, Q in zip(self.matrices(out), Ps, Qs, strict=True):
            torch.mm(P, Q.T, out=M)
        for where, tensor in zip(self.plain, plain, strict=True):
            out[where] = tensor
        return out

    def random(self) -> torch.Tensor:
        """Return a standard normal Q, the same on all ranks, another at each step."""
        if self.device.type == "meta":
            return self.Q
        seed = np.random.SeedSequence([self.setting.seed % 2**64, self.steps]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed[0]))
        return torch.randn(len(self.Q), generator=generator, dtype=self.dtype).to(self.device)

    def matrices(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the matrices M [rows x columns] that lie in a vector [n]."""
        return [vector[where].view(shape) for where, shape in self.coded]

    def split(self, code: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Return all P [rows x r], all plain tensors, and all Q [columns x r] that lie in a code."""
        k, first = len(self.coded), self.first.views(code[: self.first.n])
        return first[:k], first[k:], self.second.views(code[self.first.n :])
