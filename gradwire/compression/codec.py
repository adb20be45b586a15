"""The base class of codecs: a codec says how a vector looks on the wire."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gradwire.core.records.formulas import as_written, evaluate
from gradwire.core.strategy.layout import Layout

FEEDBACK, UNBIASED, LOSSLESS, ROUNDED = "feedback", "unbiased", "lossless", "rounded"
LAWS = {
    FEEDBACK: "what is sent plus what is kept equals the vector plus what was kept",
    UNBIASED: "the mean of what comes out, over many codes, is the vector",
    LOSSLESS: "the vector comes out bit for bit",
    ROUNDED: "each element comes out as the nearest of the values that a code can hold",
}


@dataclass(frozen=True)
class Code:
    """The code of a vector: `data`, a vector of any dtype; some of its bytes are indices and headers."""

    data: torch.Tensor
    indices: int = 0
    headers: int = 0

    @property
    def values(self) -> int:
        """The bytes of values."""
        return self.data.nbytes - self.indices - self.headers


@dataclass(frozen=True)
class Setting:
    """The settings of the run that a codec reads; `scope`: "tensor" by tensor, "vector" as a whole.

    `rank` is the sender; `sends`: whether this end is at the sender.
    """

    scope: str = "tensor"
    seed: int = 0
    rank: int = 0
    workers: int = 1
    momentum: float = 0.0
    sends: bool = True


@dataclass(kw_only=True)
class Codec(ABC):
    """One end of one direction of a link; its fields are the codec's options.

        codec.start(layout, like)
        code = codec.encode(vector)         # at the sender
        vector = codec.decode(code.data)    # at the receiver, which has an instance of its own

    `law`, one of `LAWS`, says what its codes preserve, and the tests hold it to that; what FEEDBACK keeps is the first
    of `state`. The first line of a class's docstring describes it in `--list`; the docstring below each field is the
    help of the option.

    `kind` says how ranks sum their coded vectors. *dense*: codes can be added, so a ring reduces them. *gathered*:
    codes go to all ranks, and each decodes them all. *linear*: the codec sums by all-reduces of its own.
    """

    name: ClassVar[str]  # on the command line: its module's name
    kind: ClassVar[str]
    law: ClassVar[str]  # of a codec of the table
    values: ClassVar[str]  # bytes of the values of one tensor; of n elements of w bytes, rows x columns as a matrix
    indices: ClassVar[str] = "0"  # likewise, i being the bytes of an index
    headers: ClassVar[str] = "0"
    exact_size: ClassVar[bool] = True  # whether the formulas are exact, and not upper bounds
    defaults: ClassVar[Mapping[str, Any]] = {}  # options of the run, such as momentum, for which it has its own default
    carries_momentum: ClassVar[bool] = False  # it takes --momentum, and the optimizer runs without
    tensors_only: ClassVar[bool] = False  # it codes tensor by tensor, never the vector as a whole
    state: ClassVar[tuple[str, ...]] = ()  # the attributes, tensors or numbers, from which it continues later
    on_meta: ClassVar[bool] = True  # the length of its codes does not depend on elements

    def __init_subclass__(cls) -> None:
        cls.name = cls.__module__.rpartition(".")[2]

    def check(self) -> None:  # noqa: B027 - most have nothing to check
        """Check what no field of the options can say. Raises UsageError."""

    def count(self) -> tuple[float, float, float]:
        """Return the bytes of values, indices and headers of a code, in closed form. Only after `start`."""
        options = as_written({option.name: getattr(self, option.name) for option in dataclasses.fields(self)})
        totals = [0.0, 0.0, 0.0]
        for shape, n in zip(self.parts.shapes, self.parts.sizes, strict=True):
            if n:
                rows = shape[0] if len(shape) > 1 else 1
                values = {"n": n, "w": self.dtype.itemsize, "rows": rows, "columns": n // rows,
                          "i": index_dtype(self.layout.n).itemsize}  # fmt: skip
                for i, formula in enumerate((self.values, self.indices, self.headers)):
                    totals[i] += evaluate(formula, {**options, **values})
        return totals[0], totals[1], totals[2]

    # The run

    def start(self, layout: Layout, like: torch.Tensor, setting: Setting = Setting()) -> None:
        """Prepare for vectors [layout.n] of the dtype and device of `like`. Called once.

        The sender sets `epoch`, from 1 on, before it encodes. `parts` are coded one by one: they are the tensors of
        `layout`, or all of it.
        """
        self.layout, self.setting, self.epoch = layout, setting, 1
        self.parts = layout if setting.scope == "tensor" else layout.whole
        self.dtype, self.device = like.dtype, like.device
        self.setup()

    def setup(self) -> None:  # noqa: B027 - most keep nothing
        """Allocate the state that lasts from one vector to the next. Called by `start`."""

    @abstractmethod
    def encode(self, vector: torch.Tensor) -> Code:
        """Return the code of `vector` [n], which it does not change. Raises RunFailed if an element is not finite."""

    @abstractmethod
    def decode(self, data: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the vector [n] of a code, written into `out` unless it is None."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that this end needs to continue later, copied."""
        values = {name: getattr(self, name) for name in self.state}
        return {name: value.clone() if torch.is_tensor(value) else value for name, value in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of the same layout."""
        for name in self.state:
            if torch.is_tensor(value := getattr(self, name)):
                value.copy_(state[name])
            else:
                setattr(self, name, state[name])

    # For subclasses

    def empty(self) -> torch.Tensor:
        """Return a new vector [n]."""
        return torch.empty(self.layout.n, dtype=self.dtype, device=self.device)

    def kept(self, value: float = 0.0) -> torch.Tensor:
        """Return a new vector [n] of this value for a sender's state; of length 0 at an end that only receives."""
        n = self.layout.n if self.setting.sends else 0
        return torch.full((n,), value, dtype=self.dtype, device=self.device)

    @property
    def nbytes(self) -> int:
        """The bytes of the state that this end keeps from one vector to the next."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, torch.Tensor))


def index_dtype(n: int) -> torch.dtype:
    """Return the type of an index into `n` elements."""
    return torch.int32 if n <= 2**31 else torch.int64
