"""What follows from a strategy's class and formulas: its description, its files, the bytes and seconds of a step."""

import dataclasses
import sys
from functools import cache
from inspect import signature, unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gradwire.core.records.formulas import as_written, evaluate
from gradwire.core.strategy.traits import Chooses, Coded, Traffic
from gradwire.core.transports.throttle import FAIR, IN_ORDER

if TYPE_CHECKING:
    from gradwire.core.strategy.base import Strategy  # which imports this module


def describe(kind: type) -> str:
    """Return the first paragraph of the docstring: what the algorithm does."""
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


def closed_form(
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
    sizes = _sizes(strategy, n_gpus, nbytes, itemsize, blocks)
    return formula.count({**sizes, "G": code.nbytes if code else nbytes})


def footprint(
    strategy: "Strategy", role: str, n_gpus: int, nbytes: int, state: int, itemsize: int = 4, blocks: float = 1
) -> dict[str, float] | None:
    """Return the bytes of each kind that a rank of this role holds; None where they have no closed form.

    `state`: the bytes that the optimizer keeps if it updates all of x.
    """
    formulas = dataclasses.asdict(strategy.memory(role))
    if None in formulas.values():
        return None
    sizes = {**_sizes(strategy, n_gpus, nbytes, itemsize, blocks), "S": state}
    return {name.replace("_", " "): evaluate(formula, sizes) for name, formula in formulas.items()}


def _sizes(strategy: "Strategy", n_gpus: int, nbytes: int, itemsize: int, blocks: float) -> dict[str, Any]:
    L = n_gpus.bit_length() - 1
    sizes = {"N": n_gpus, "p": 1 << L, "L": L, "P": nbytes, "n": nbytes // itemsize, "w": itemsize, "B": blocks}
    formulas_of = strategy.chosen if isinstance(strategy, Chooses) else strategy
    options = {option.name: getattr(formulas_of, option.name) for option in dataclasses.fields(formulas_of)}
    return {**as_written(options), **sizes}


def predict(
    strategy: "Strategy",
    n_gpus: int,
    nbytes: int,
    compute: float,
    bandwidth: float,
    latency: float,
    code: Coded | None = None,
    itemsize: int = 4,
    sharing: str = FAIR,
    blocks: int = 1,
    overhead: float = 0.0,
) -> float | None:
    """Return the seconds of a step in the latency-bandwidth model (Hockney, 1994); None where it has none.

    compute + messages latency + bytes / bandwidth, of the messages and bytes of the critical path, as in Paleo (Qi
    et al., ICLR 2017), and `overhead` for each message `in_turn`; where these travel `while_computing`, the greater of
    `compute` and the rest. `bandwidth` in payload bytes a second, times in seconds; `sharing`: FAIR or IN_ORDER, see
    `sharing.py` of virtual time. Without `--clip_norm`, for which some strategies send more; the codec computes in
    `compute`.
    """
    cost = strategy.cost(code.kind if code else None)
    path = cost.in_order if cost.in_order and sharing == IN_ORDER else cost.path
    if n_gpus == 1 and path is not None:
        return compute  # there is no other rank to send to
    if path is None or (path.powers_of_two and n_gpus & (n_gpus - 1)):
        return None
    messages, on_the_way = closed_form(strategy, path, n_gpus, nbytes, code, itemsize, blocks)
    sending = messages * latency + on_the_way / bandwidth
    if overhead:
        in_turn = dataclasses.replace(path, messages=path.in_turn or path.messages)
        sending += overhead * closed_form(strategy, in_turn, n_gpus, nbytes, code, itemsize, blocks)[0]
    return max(compute, sending) if path.while_computing else compute + sending
