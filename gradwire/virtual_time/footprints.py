"""Whether a model fits: the memory of a rank in closed form, beside the counted memory, and the smallest N."""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from gradwire.compression import NoCodec
from gradwire.core.records import tables
from gradwire.core.records.errors import UsageError, one_line
from gradwire.core.records.formulas import evaluate
from gradwire.core.strategy.cost_model import sizes_in_formulas
from gradwire.core.strategy.factories import ByTensor
from gradwire.core.strategy.run_size import RunSize, check_strategy
from gradwire.core.strategy.state import nbytes_of
from gradwire.diagnosis.memory_use import ACTIVATIONS, KINDS, MemoryUse
from gradwire.options import Options
from gradwire.virtual_time.steps import Sizes

MOST = 2**16  # ranks
NEVER = "never"
CAPTION = (
    "The smallest n_gpus at which no rank holds more in a step, in closed form (-: there is none).\n"
    "A model's activations and the temporaries of an update come on top."
)
NO_EPOCH = 10**9  # steps, to a strategy that asks how many an epoch has


def state_bytes(options: Options, n: int) -> int:
    """Return the bytes that the optimizer keeps of n parameters, after a step on the meta device. Raises UsageError."""
    x = nn.Parameter(torch.zeros(n, device="meta", dtype=options.torch_dtype))
    x.grad = torch.zeros_like(x)
    make = options.make_optimizer()
    if isinstance(make, ByTensor):
        raise UsageError(f"--optimizer {make.name}: sees the tensors of a model, which a dry run has not; take another")
    try:
        (optimizer := make([x])).step()
    except Exception as error:
        raise UsageError(
            f"--optimizer {options.optimizer}: takes no step on the meta device ({one_line(error)}); take another"
        ) from error
    return nbytes_of(optimizer)


def footprint(options: Options, sizes: Sizes, role: str, n_gpus: int) -> dict[str, float] | None:
    """Return the bytes of each kind that a rank of this role holds in a step; None: they have no closed form."""
    if not isinstance(options.codec, NoCodec):
        return None
    n, width = sizes.parameters, options.torch_dtype.itemsize
    blocks = n / max(sizes.layout.sizes)  # so that P / B is the largest
    formulas = dataclasses.asdict(options.strategy.memory(role))
    if None in formulas.values():
        return None
    known = sizes_in_formulas(options.strategy, n_gpus, n * width, width, blocks) | {"S": state_bytes(options, n)}
    found = {name.replace("_", " "): evaluate(formula, known) for name, formula in formulas.items()}
    return found | {ACTIVATIONS: 2 * n if options.amp != "none" and role == "worker" else 0}


def summary(options: Options, sizes: Sizes, uses: Sequence[MemoryUse]) -> str:
    """Return tables of the memory of each role: in closed form, and as counted on its rank with the most."""
    texts = []
    for role in dict.fromkeys(options.roles):
        use = max((use for use, of in zip(uses, options.roles, strict=True) if of == role), key=lambda use: use.peak)
        expected = footprint(options, sizes, role, options.world_size) or {}
        formulas = {**dataclasses.asdict(options.strategy.memory(role)), ACTIVATIONS: "2 n"}
        rows = [[f"GB of a {role}", "", "formula", "counted"]]
        for kind in KINDS:
            nbytes, of = use.most.get(kind) or use.at_peak.get(kind, 0), expected.get(kind)
            if of or nbytes >= 0.0005e9:
                formula = formulas[kind.replace(" ", "_")] if kind in expected else ""
                rows.append([kind, formula, tables.number(of, 3, 1e-9), tables.number(nbytes, 3, 1e-9)])
        total = sum(expected.values()) if expected else None
        where = f"peak, in {use.phase}" if use.phase else "peak"
        rows.append([where, "sum", tables.number(total, 3, 1e-9), tables.number(use.peak, 3, 1e-9)])
        texts.append(tables.aligned(rows, left=2))
    return "\n".join(texts)


def table(combinations: Sequence[Mapping[str, str]], models: Sequence[tuple[Options, Sizes]], gigabytes: float) -> str:
    """Return the smallest n_gpus that fit as a table: strategies below each other, other options side by side.

    `combinations`: the options that vary, of each of the `models`. Raises UsageError.
    """
    rows: dict[str, dict[str, str]] = {}
    for values, (options, sizes) in zip(combinations, models, strict=True):
        column = ", ".join(f"{name}={value}" for name, value in values.items() if name != "strategy") or "n_gpus"
        row = rows.setdefault(options.strategy.name, {"strategy": options.strategy.name})
        row[column] = str(smallest_n(options, sizes, gigabytes * 1e9) or "-")
    text = tables.aligned([[*next(iter(rows.values()))], *([*row.values()] for row in rows.values())], left=1)
    return f"{text}\n{CAPTION}"


def smallest_n(options: Options, sizes: Sizes, nbytes: float) -> int | str | None:
    """Return the fewest ranks that hold at most `nbytes` each; NEVER; None: there is no closed form.

    Raises UsageError.
    """
    strategy, (least, most) = options.strategy, options.strategy.traits.ranks
    most = MOST if most is None else most
    make = options.make_optimizer()

    def check(n: int) -> None:
        workers = strategy.roles(n).count("worker")
        check_strategy(strategy, RunSize(n, workers, NO_EPOCH, shared_memory=False, optimizer=make))

    def fits(n: int) -> bool:
        try:
            check(n)
        except UsageError:  # too few for its options
            return False
        held = [footprint(options, sizes, role, n) for role in set(strategy.roles(n))]
        return all(parts is not None and sum(parts.values()) <= nbytes for parts in held)

    check(most)
    if any(footprint(options, sizes, role, most) is None for role in set(strategy.roles(most))):
        return None
    below, n = least - 1, least
    while not fits(n):
        if n == most:
            return NEVER
        below, n = n, min(2 * n, most)
    while n - below > 1:
        middle = (below + n) // 2
        below, n = (below, middle) if fits(middle) else (middle, n)
    return n
