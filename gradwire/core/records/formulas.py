"""Formulas as they are printed for people: written as on paper, and evaluated by programs and tests."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from gradwire.core.records.errors import UsageError

_FUNCTIONS = {"max": max, "min": min, "floor": math.floor, "ceil": math.ceil, "log2": math.log2}


def evaluate(formula: str, values: Mapping[str, Any]) -> float:
    """Return the value of a formula such as "2 (N - 1) P / N". Raises NameError if a value is missing.

    Raises UsageError for "^", which Python reads as XOR.
    """
    if "^" in formula:
        raise UsageError(f"{formula}: ^ is not a power in a formula; write **")
    # A space between two factors means "times": that is all that Python's own syntax lacks.
    python = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    found: float | Fraction = eval(python, {"__builtins__": {}}, {**_FUNCTIONS, **values})
    return float(found) if isinstance(found, Fraction) else found


def as_written(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with each float as the number that is written: 0.29 of 100 is 29, in binary it is less."""
    return {name: Fraction(str(value)) if type(value) is float else value for name, value in options.items()}
