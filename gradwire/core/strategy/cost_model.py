"""What follows from a strategy's class and formulas: its description, its files, the bytes of a step."""

import dataclasses
import sys
from functools import cache
from inspect import signature, unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gradwire.core.records.formulas import as_written
from gradwire.core.strategy.traits import Chooses, Coded, Traffic

if TYPE_CHECKING:
    from gradwire.core.strategy.strategy import Strategy  # which imports this module


def describe(kind: type) -> str:
    """Return the first paragraph of the docstring, which describes the algorithm."""
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())


@cache
def sources(kind: type) -> set[str]:
    """Return the files in which the algorithm is written: of its class and those that it extends, and collectives.

    Collectives are the functions in their modules that take a `transport`. What a run records is noted beside the line
    of these files that was at work.
    """
    modules = [vars(sys.modules[base.__module__]) for base in kind.__mro__ if base.__module__ in sys.modules]
    collectives = [
        function
        for module in modules
        for function in module.values()
        if isinstance(function, FunctionType) and "transport" in signature(function).parameters
    ]
    methods = [method for base in kind.__mro__ for method in vars(base).values() if isinstance(method, FunctionType)]
    files = {unwrap(function).__code__.co_filename for function in (*methods, *collectives)}
    # The functions that @dataclass makes have no file, or dataclasses.py.
    return {file for file in files if not file.startswith("<") and file != dataclasses.__file__}


def evaluate_cost(
    strategy: "Strategy",
    formula: Traffic,
    n_gpus: int,
    nbytes: int,
    code: Coded | None = None,
    itemsize: int = 4,
    blocks: int = 1,
) -> tuple[float, float]:
    """Return the messages and bytes that a formula gives, for `nbytes` of parameters of `itemsize` bytes each.

    `blocks`: into how many the model is cut, where the strategy cuts it.
    """
    sizes = sizes_in_formulas(strategy, n_gpus, nbytes, itemsize, blocks)
    return formula.count({**sizes, "G": code.nbytes if code else nbytes})


def sizes_in_formulas(strategy: "Strategy", n_gpus: int, nbytes: int, itemsize: int, blocks: float) -> dict[str, Any]:
    """Return what formulas know, by its letters and by the names of the options."""
    L = n_gpus.bit_length() - 1
    sizes = {"N": n_gpus, "p": 1 << L, "L": L, "P": nbytes, "n": nbytes // itemsize, "w": itemsize, "B": blocks}
    formulas_of = strategy.chosen if isinstance(strategy, Chooses) else strategy
    options = {option.name: getattr(formulas_of, option.name) for option in dataclasses.fields(formulas_of)}
    return {**as_written(options), **sizes}
