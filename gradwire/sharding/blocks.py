"""How a model is cut into blocks, which sharded strategies gather and reduce one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import groupby

import torch
from torch import nn

from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.layout import Layout
from gradwire.core.strategy.replica import Replica
from gradwire.core.strategy.run_size import RunSize


@dataclass(eq=False)
class Block:
    """Parameters that lie one after the other in x and are used in the passes of `module`."""

    name: str
    module: nn.Module
    tensors: range  # the numbers of its parameters
    part: slice  # of x
    chunks: Sequence[slice] = ()  # of x, one for each rank: rank r owns number (r + 1) mod N
    place: slice = field(default_factory=lambda: slice(0))  # of this rank's chunk among all that it owns
    missing: set[int] = field(default_factory=set)  # the parameters whose gradients are not complete in this pass
    vector: torch.Tensor | None = None  # [n], while it is gathered

    @property
    def n(self) -> int:
        """The number of its elements."""
        return self.part.stop - self.part.start

    def cut(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return the chunks of a vector [n] of this block."""
        return [vector[chunk.start - self.part.start : chunk.stop - self.part.start] for chunk in self.chunks]


def check_pieces(name: str, run: RunSize) -> None:
    """Check that all ranks, which gather x together, make as many passes. Raises UsageError."""
    if len({min(run.accumulate, samples) for samples in run.last_parts}) > 1:
        raise UsageError(
            f"--accumulate {run.accumulate}: the last batch leaves a worker fewer samples than that, and with {name} "
            "all need as many pieces; change --batch_size, --train_size or --accumulate"
        )


@singledispatch
def cut(replica: Replica, names: str) -> list[Block]:
    """Return the blocks of the model of a replica: see `blocks_of`."""
    return blocks_of(replica.model, replica.layout, names)


def blocks_of(model: nn.Module, layout: Layout, names: str = "") -> list[Block]:
    """Return the blocks of a model, those first that are its rest: parameters in none of the others, or in several.

    `names`: of the modules that are blocks, with commas; "": the children of the longest ModuleList or Sequential.
    Raises UsageError.
    """
    modules = dict(model.named_modules())
    chosen = names.split(",") if names else _children_of_the_longest_list(modules)
    homes: dict[int, set[str]] = {}  # of each parameter: in which blocks it is
    for name, module in modules.items():
        inside = [block for block in chosen if f"{name}.".startswith(f"{block}.")]
        if len(inside) > 1 or not set(chosen) <= set(modules):
            wrong = "one lies in another" if len(inside) > 1 else "the model has no such module"
            raise UsageError(
                f"--block_modules {names}: {wrong}; name modules of it, such as {', '.join(modules)[2:200]}"
            )
        for p in module.parameters(recurse=False):
            homes.setdefault(id(p), set()).update(inside or [""])
    of = [min(home) if len(home := homes[id(p)]) == 1 else "" for p in model.parameters() if p.requires_grad]
    blocks: list[Block] = []
    for name, run in groupby(range(len(of)), key=of.__getitem__):
        first, *_, last = [*run] * 2
        part = slice(layout.slices[first].start, layout.slices[last].stop)
        again = sum(block.module is modules[name] for block in blocks)  # in several runs, and each run is a block
        label = (name or "the rest") + (f", {1 + again}" if again else "")
        blocks.append(Block(label, modules[name], range(first, last + 1), part))
    return sorted(blocks, key=lambda block: block.module is not model)


def _children_of_the_longest_list(modules: Mapping[str, nn.Module]) -> list[str]:
    lists = {name: m for name, m in modules.items() if isinstance(m, nn.ModuleList | nn.Sequential)}
    if not lists:
        with_parameters = [m for m in modules.values() if next(m.parameters(recurse=False), None) is not None]
        if len(with_parameters) > 1:
            raise UsageError(
                "--block_modules: the model has no ModuleList or Sequential whose children are its blocks; name them, "
                f"such as --block_modules {list(modules)[1]}"
            )
        return []
    longest = max(lists, key=lambda name: len(lists[name]))
    return [name for name in modules if name and name.rpartition(".")[0] == longest]
