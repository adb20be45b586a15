"""The codecs of dual-way gradient sparsification, one for each end: parts of the strategy `dgs`, not of the table."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gradwire.compression.base import Code, Setting, check_finite
from gradwire.compression.sparse import Sparse
from gradwire.core.records.errors import UsageError
from gradwire.core.records.recorder import Recorder
from gradwire.core.strategy.layout import Layout


@dataclass(kw_only=True)
class SAMomentum(Sparse):
    """A worker's end: sends the largest elements of its velocity.

    It keeps m u, which the next step needs: m times the elements sent and, elsewhere, m (u / m), that is u.
    """

    def setup(self) -> None:
        """u <- 0."""
        super().setup()
        self.mu, self.room = self.kept(), self.kept()

    def encode(self, vector: torch.Tensor) -> Code:
        """Return top_R(u), with u <- m u + `vector`, which is eta g [n]."""
        check_finite(vector, self.layout)
        u = self.mu.add_(vector)
        code, sent = self.send(self.room.copy_(u))
        self.mu.index_copy_(0, sent, u.index_select(0, sent).mul_(self.setting.momentum))
        return code


@dataclass(kw_only=True)
class Difference(Sparse):
    """The server's end of the way back: sends the largest elements of the difference that the worker does not know."""

    def setup(self) -> None:
        """Allocate w."""
        super().setup()
        self.w, self.room = self.kept(), self.kept()

    def encode(self, vector: torch.Tensor) -> Code:
        """Return the code of s = top_R(x - w), `vector` being x [n]; w <- w + s."""
        code, _ = self.send(torch.sub(vector, self.w, out=self.room))
        self.add(code.data, self.w)
        return code

    def reset(self, x: torch.Tensor) -> None:
        """w <- x [n]: the worker is sent all of it."""
        self.w.copy_(x)

    def send_whole(self, x: torch.Tensor) -> torch.Tensor:
        """Return x - w [n], which is sent as it is; w <- w + that."""
        G = x - self.w
        self.w.add_(G)
        return G


def differences(
    density: float, layout: Layout, x: torch.Tensor, scope: str, workers: Iterable[int]
) -> tuple[dict[int, Difference], torch.Tensor]:
    """Return the server's end of the way to each worker, and the vector [n] in which all of them compute."""
    ends, room = {k: Difference(density=density) for k in workers}, torch.empty_like(x)
    for end in ends.values():
        end.start(layout, x, Setting(scope))
        end.room = room  # they work one after the other
    return ends, room


class RecordedCodes:
    """Makes and reads codes, and records how long that takes and how many bytes they have."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def encode(self, codec: Sparse, vector: torch.Tensor) -> torch.Tensor:
        """Return the code of a vector [n]."""
        with self._recorder.phase("compress", work="encode"):
            code = codec.encode(vector)
        self._recorder.count_code(code.values, code.indices, code.headers, vector.nbytes)
        return code.data

    def add(self, codec: Sparse, code: torch.Tensor, x: torch.Tensor, alpha: float = 1.0) -> None:
        """x <- x + alpha (the vector of a code)."""
        with self._recorder.phase("compress", work="decode"):
            codec.add(code, x, alpha)


def check_sgd(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Check that SAMomentum can take the steps of this optimizer for a strategy of this name. Raises UsageError."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise UsageError(f"--optimizer {type(optimizer).__name__.lower()}: {name} is SGD with momentum; take sgd")
    options = optimizer.param_groups[0]
    for option, value in {"nesterov": False, "dampening": 0, "maximize": False}.items():
        if options[option] != value:
            raise UsageError(f"--optimizer_options {option}={options[option]}: {name} knows no such form; omit it")
    if not options["momentum"] > 0:
        raise UsageError(f"--momentum {options['momentum']}: {name} divides by it; give one such as 0.7")
