"""The baseline of fully_sharded: torch.distributed.fsdp.fully_shard (FSDP2), with the options of train.py.

python fully_sharded_builtin.py --n_gpus 4
python -m records.compare results/*.json

Same data, batches, seed, optimizer and records, and the weight of each rank's loss as in ring_all_reduce_builtin.py.
Each block of the model is sharded, then the whole, with the defaults of fully_shard: of the rest of the model they keep
the parameters between the two passes. Bytes are those of that, from formula, without the padding of fully_shard. Of the
pieces of an accumulated gradient, only the last reduces.

The optimizer updates DTensors. Frozen parameters are not sharded. Between epochs every rank has the whole model, in a
module of its own, which is evaluated and saved.
"""

import sys

from records.interrupts import end_while_loading

if __name__ == "__main__":  # what follows takes seconds to load, in which Ctrl-C may come
    end_while_loading("nothing was written")

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from records.errors import UsageError
from ring_all_reduce_builtin import BuiltinRingAllReduce
from strategies import RunSize
from strategies.all_reduce.fully_sharded import FullySharded
from strategies.common.blocks import blocks_of, free, give
from strategies.common.descent import ByTensor, is_elementwise
from strategies.common.replica import layout_of, other_tensors, trained
from strategies.common.traits import Cost, Traits
from training.command_line import main


@dataclass(kw_only=True)
class BuiltinFullySharded(BuiltinRingAllReduce):
    """torch's fully_shard (FSDP2): parameters are gathered for the passes, gradients reduced in the backward pass."""

    name = "fully_sharded_builtin"
    bytes_source = "from formula: per rank and step 3 (N - 1) / N of the blocks, 2 (N - 1) / N of the rest of the model"
    traits = Traits(has_x=False)

    block_modules: str = ""
    """The modules that are blocks, by name, with commas. Default: the children of the longest ModuleList or
    Sequential."""

    def cost(self, kind: str | None = None) -> Cost:
        """That of fully_sharded, which gathers the rest of the model twice too."""
        return Cost(worker=FullySharded().cost().worker)

    def check(self, run: RunSize) -> None:
        """See Strategy."""
        make = run.optimizer
        if make and (isinstance(make, ByTensor) or not is_elementwise(make)):
            raise UsageError(f"--optimizer: {self.name} cuts tensors, which this one may see as a whole; take adamw")

    def parallel(self, model: nn.Module, n_gpus: int) -> nn.Module:
        """Start torch.distributed and shard a copy of the model, with which it shares what is not trained."""
        device = self.transport.device
        if not self.connect() and device.type == "cuda":
            raise UsageError(f"--device cuda: {self.name} needs a GPU for each rank; take --device cpu")
        self.is_whole = True  # the original has the parameters
        self.pieces = 0  # of this step
        untrained = [*other_tensors(model), *model.buffers()]
        self.sharded = deepcopy(model, {id(tensor): tensor for tensor in untrained})
        parameters, blocks = trained(self.sharded), blocks_of(self.sharded, layout_of(model), self.block_modules)
        modules = dict.fromkeys(block.module for block in blocks if block.module is not self.sharded)
        self.of_all, self.of_blocks = (sum(p.nbytes for one in of for p in trained(one)) for of in ([model], modules))
        if self.of_blocks != sum(block.n for block in blocks if block.module in modules) * parameters[0].itemsize:
            raise UsageError(f"--block_modules: {self.name} takes no parameters that are in several; give others")
        mesh = init_device_mesh(device.type, (self.transport.world_size,))
        ignored = set(self.sharded.parameters()) - set(parameters)
        for module in (*modules, self.sharded):
            fully_shard(module, mesh=mesh, ignored_params=ignored)
        return self.sharded

    def begin_piece(self, last: bool) -> None:
        """Reduce only with the last piece of an accumulated gradient; keep no whole model meanwhile."""
        self.pieces += 1
        assert isinstance(self.sharded, FSDPModule)
        self.sharded.set_requires_gradient_sync(last)
        if self.is_whole:
            self.is_whole = False
            for name, parameter in self.original.named_parameters():
                if parameter.requires_grad:
                    free(parameter, name)

    def count_bytes(self) -> float:
        """(N - 1)/N of the parameters for each gathering and reduction."""
        N, pieces, self.pieces = self.transport.world_size, self.pieces, 0
        return (N - 1) / N * (pieces * (self.of_blocks + self.of_all) + self.of_all)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """See Builtin: all blocks are gathered."""
        modules = [module for module in self.sharded.modules() if isinstance(module, FSDPModule)]
        for module in modules:
            module.unshard()
        yield
        for module in modules:
            module.reshard()

    def model(self) -> torch.Tensor:
        """Return the parameters [n], gathered in the middle of an epoch."""
        if self.is_whole:
            return super().model()
        with self.whole():
            return torch.cat([p.detach().reshape(-1) for p in trained(self.sharded)])

    def finish(self) -> None:
        """Give every rank the whole model, too."""
        super().finish()
        for parameter, view in zip(trained(self.original), layout_of(self.original).views(self.model()), strict=True):
            give(parameter, view)
        self.is_whole = True

    def state_dict(self) -> dict[str, Any]:
        """See Builtin: x is whole, the optimizer's state is this rank's part."""
        return dict(tree_map_only(DTensor, DTensor.to_local, super().state_dict()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Builtin."""
        super().load_state_dict(state)
        for p, whole in zip(trained(self.sharded), trained(self.original), strict=True):
            assert isinstance(p, DTensor)
            p.detach().copy_(distribute_tensor(whole.detach(), p.device_mesh, p.placements))
            of = self.descent.optimizer.state[p]
            for name, part in of.items():
                if isinstance(part, torch.Tensor) and part.shape == p.to_local().shape:
                    of[name] = DTensor.from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())

    @property
    def state_bytes(self) -> int:
        """See Strategy: of this rank's part."""
        state = self.descent.optimizer.state.values()
        tensors = [t.to_local() if isinstance(t, DTensor) else t for of in state for t in of.values()]
        return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))


if __name__ == "__main__":
    sys.exit(main(__doc__, BuiltinFullySharded()))
