"""What a student's functions give: whether it is a tensor of the right kind, close to another, or a spoiled one."""

import random
from typing import Any

import torch

from lessons.lab import Fault, Vectors, name_dtype

_DONE_LATER = {"generator": "yield", "coroutine": "async"}


def check_in_place(call: str, cure: str, returned: Any, vector: torch.Tensor, like: torch.Tensor) -> None:
    """Check that a `call`, "rank 1: all_reduce", has worked in place on `vector`, which was like `like`; else `cure`.

    Raises Fault.
    """
    if isinstance(returned, torch.Tensor) and returned is not vector:
        raise Fault("returned", f"{call} returned a tensor; {cure}")
    if (kind := type(returned).__name__) in _DONE_LATER:
        raise Fault("returned", f"{call} returned a {kind}: with `{_DONE_LATER[kind]}` in it, a function does nothing "
                                "when it is called")  # fmt: skip
    if kind_of(vector) != kind_of(like):
        raise Fault("damage", f"{call} has made of its vector, {kind_of(like)}, {kind_of(vector)}; {cure}")


def check_like(kind: str, begin: str, value: Any, like: torch.Tensor) -> None:
    """Check that a value is a tensor of this shape and dtype. Raises Fault, of this kind: "`begin` a float; ..."."""
    if kind_of(value) != kind_of(like):
        raise Fault(kind, f"{begin} {kind_of(value)}; expected {kind_of(like)}")


class Updater:
    """x, and the updates that a student's function makes of it, in place: SGD with momentum."""

    def __init__(self, x: torch.Tensor, rate: float, momentum: float = 0.0) -> None:
        self.x, self._rate, self._momentum = x, rate, momentum
        self.velocity = torch.zeros_like(x)
        self.before: list[torch.Tensor] = []  # x before each update
        self.used: list[torch.Tensor] = []  # the gradients

    def update(self, g: Any) -> None:
        """Make one step of x. Raises Fault."""
        check_like("update", "update was given", g, self.x)
        if is_spoiled(g):
            raise Fault("update", "update was given NaN, which is what received.vector holds after its release")
        self.before.append(self.x.clone())
        self.used.append(g.clone())
        self.velocity.mul_(self._momentum).add_(g)
        self.x.sub_(self._rate * self.velocity)

    def result(self) -> Vectors:
        """Return x before each update and at the end, one behind the other, and the gradients."""
        return {"before": torch.cat([*self.before, self.x]), "used": torch.cat([*self.used, self.x[:0]])}


# What a received vector holds after its release: bytes that no computation gives, and that a result of them keeps.
SPOILED = 0xFF  # in all bytes, that is a NaN whose bits are all set, the index -1, or 255


def is_spoiled(vector: torch.Tensor) -> bool:
    """Whether an element is a NaN that came from a released vector: computing keeps its bits but the sign."""
    integers = {torch.float32: torch.int32, torch.float64: torch.int64}.get(vector.dtype)
    return integers is not None and bool((vector.abs().view(integers) == torch.iinfo(integers).max).any())


def kind_of(value: Any) -> str:
    """Return what a value is, in words: "a tensor [3] of float32"."""
    if isinstance(value, tuple):
        return f"({', '.join(map(kind_of, value))})"
    if isinstance(value, torch.Tensor):
        return f"a tensor {list(value.shape)} of {name_dtype(value.dtype)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def is_close(vector: torch.Tensor | None, expected: torch.Tensor) -> bool:
    """Whether there is a vector, and it is what was expected but for rounding: sums may be made in any order."""
    if vector is None or vector.shape != expected.shape or vector.dtype != expected.dtype:
        return False
    if not expected.numel():
        return True
    vector = vector.detach()
    # All inputs are near 1, so a smaller result may come from cancelling.
    bound = (1e-10 if vector.dtype == torch.float64 else 1e-4) * max(float(expected.abs().max()), 1.0)
    # NaN is close to nothing. Most vectors that differ do so in their first elements.
    return all(float((vector[:n] - expected[:n]).abs().max()) <= bound for n in (64, None))


def normal(length: int, dtype: torch.dtype, chance: random.Random) -> torch.Tensor:
    """Return a vector [length] of normal random numbers."""
    generator = torch.Generator().manual_seed(chance.getrandbits(62))
    return torch.randn(length, generator=generator, dtype=torch.float64).to(dtype)
