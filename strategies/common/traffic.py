"""What a strategy sends, in closed form: formulas that are printed for people and evaluated by the tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from records.formulas import evaluate


@dataclass(frozen=True)
class Traffic:
    """What the ranks of one role send, on average over them, while every worker takes one step.

    `messages` and `bytes` are formulas of N (ranks), P (bytes of the parameters), C (bytes of a gradient's code) and
    the options of the strategy by their names, written as on paper: "2 (N - 1) P / N". What ends an epoch (goodbyes,
    buffers) is not in them. As a critical path, `while_computing` says that they travel while the step computes, so
    that it takes the greater of the two times; otherwise their sum.
    """

    messages: str
    bytes: str
    while_computing: bool = False

    def count(self, values: Mapping[str, float]) -> tuple[float, float]:
        """Return messages and bytes for `values` of N, P, C and the options. Raises NameError if one is missing."""
        return evaluate(self.messages, values), evaluate(self.bytes, values)


@dataclass(frozen=True)
class Coded:
    """What a closed form is told of a codec: its kind, and the bytes of a code."""

    kind: str
    nbytes: float


NOTHING = Traffic("0", "0")
