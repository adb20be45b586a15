"""What a strategy sends, in closed form: formulas that are printed for people and evaluated by the tests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What the ranks of one role send, on average over them, while every worker takes one step.

    `messages` and `bytes` are formulas of N (ranks), P (bytes of the parameters) and the options of the strategy by
    their names, written as on paper: "2 (N - 1) P / N". What ends an epoch (goodbyes, buffers) is not in them.
    """

    messages: str
    bytes: str

    def count(self, values: Mapping[str, float]) -> tuple[float, float]:
        """Return messages and bytes for `values` of N, P and the options. Raises NameError if one is missing."""
        return _evaluate(self.messages, values), _evaluate(self.bytes, values)


NOTHING = Traffic("0", "0")


def _evaluate(formula: str, values: Mapping[str, float]) -> float:
    # A space between two factors means "times": that is all that Python's own syntax lacks.
    python = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    return eval(python, {"__builtins__": {}}, dict(values))
