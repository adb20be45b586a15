"""The baseline of fully_sharded: torch's fully_shard (FSDP2), with the options of train.py.

python fully_sharded_builtin.py --n_gpus 4
python -m gradwire compare results/*.json

ring_all_reduce_builtin.py says what both sides have in common. Each block of the model is sharded, then the whole, with
the defaults of fully_shard, which keep the rest of the model between the two passes. The optimizer sees DTensors.
Frozen parameters are not sharded. Bytes are counted without padding. Between epochs every rank has the whole model.
"""

from collections.abc import Iterator, Sequence
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
from typing_extensions import override

from gradwire import command_line
from gradwire.baselines.ring_all_reduce_builtin import BuiltinRingAllReduce
from gradwire.core.records.errors import UsageError
from gradwire.core.strategy.factories import ByTensor, is_elementwise
from gradwire.core.strategy.tensors import layout_of, trained
from gradwire.core.strategy.traits import Cost
from gradwire.sharding.blocks import blocks_of, check_pieces
from gradwire.sharding.freed import bind, unbind
from strategies import FullySharded, RunSize


@dataclass(kw_only=True)
class BuiltinFullySharded(BuiltinRingAllReduce):
    """torch's fully_shard (FSDP2): parameters are gathered for the passes, gradients reduced in the backward pass."""

    name = "fully_sharded_builtin"
    bytes_source = "from formula: per rank and step 3 (N - 1) / N of the blocks, 2 (N - 1) / N of the rest of the model"
    shards_x = True

    block_modules: str = ""
    """The modules that are blocks, by name, with commas. Default: the children of the longest ModuleList or
    Sequential."""

    def cost(self, kind: str | None = None) -> Cost:
        """That of fully_sharded, which gathers the rest of the model twice too."""
        return Cost(worker=FullySharded().cost().worker)

    @override
    def check(self, run: RunSize) -> None:
        check_pieces(self.name, run)
        if run.optimizer and (isinstance(run.optimizer, ByTensor) or not is_elementwise(run.optimizer)):
            raise UsageError(f"--optimizer: {self.name} cuts tensors, which this one may see as a whole; take adamw")

    def parallel(self, model: nn.Module, n_gpus: int) -> Any:
        """Start torch.distributed and shard a copy of the model; both share the frozen parameters."""
        device, frozen = self.transport.device.type, {p for p in model.parameters() if not p.requires_grad}
        if not self.connect() and device == "cuda":
            raise UsageError(f"--device cuda: {self.name} needs a GPU for each rank; take --device cpu")
        self.sharded: Any = deepcopy(model, {id(t): t for t in (*frozen, *model.buffers())})
        self.layout, self.is_whole, self.pieces = layout_of(model), True, 0
        cut = blocks_of(self.sharded, self.layout, self.block_modules)
        modules = dict.fromkeys(block.module for block in cut if block.module is not self.sharded)
        in_blocks = [p for module in modules for p in trained(module)]
        if len(in_blocks) != sum(len(block.tensors) for block in cut if block.module in modules):
            raise UsageError(f"--block_modules: {self.name} takes no parameters that are in several; give others")
        self.of_all, self.of_blocks = (sum(p.nbytes for p in of) for of in (trained(model), in_blocks))
        mesh, recorder = init_device_mesh(device, (self.transport.world_size,)), self.transport.recorder
        for module in (*modules, self.sharded):
            with recorder.holding("parameters"):
                sharded = fully_shard(module, mesh=mesh, ignored_params=frozen)
            with recorder.holding("gathered parameters"):  # which frees their memory and allocates it again
                sharded.unshard()
                sharded.reshard()
        return self.sharded

    def begin_microbatch(self, last: bool) -> None:
        """Reduce only with the last piece of an accumulated gradient; meanwhile the original has no parameters."""
        self.pieces += 1
        self.sharded.set_requires_gradient_sync(last)
        for parameter, name in zip(trained(self.original), self.layout.names, strict=True) if self.is_whole else ():
            unbind(parameter, name)
        self.is_whole = False

    def count_bytes(self) -> float:
        """(N - 1)/N of the parameters for each gathering and reduction."""
        N, pieces, self.pieces = self.transport.world_size, self.pieces, 0
        return (N - 1) / N * (pieces * (self.of_blocks + self.of_all) + self.of_all)

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        """See Builtin: the parameters that have those gradients are the gathered ones."""
        modules = [module for module in self.sharded.modules() if isinstance(module, FSDPModule) and self.pieces > 1]
        for module in modules:
            module.unshard()
        yield
        for module in modules:
            module.reshard()

    def model(self) -> torch.Tensor:
        """Return the parameters [n], gathered in the middle of an epoch."""
        if self.is_whole:
            return super().model()
        return torch.cat(
            [p.full_tensor().detach().reshape(-1) for p in trained(self.sharded) if isinstance(p, DTensor)]
        )

    def finish(self) -> None:
        """Give every rank the whole model, too."""
        super().finish()
        with self.transport.recorder.evaluating():
            views = self.layout.views(self.model())
        for parameter, view in zip(trained(self.original), views, strict=True):
            bind(parameter, view)
        self.is_whole = True

    def state_dict(self) -> dict[str, Any]:
        """See Builtin: x is whole, the optimizer's state is of this rank's chunks."""
        return dict(tree_map_only(DTensor, DTensor.to_local, super().state_dict()))

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for p, whole in zip(self.updater.parameters, trained(self.original), strict=True):
            assert isinstance(p, DTensor)
            mesh, places = p.device_mesh, p.placements
            p.detach().copy_(distribute_tensor(whole.detach(), mesh, places))
            of = self.updater.optimizer.state[p]
            for name, part in of.items():
                if isinstance(part, torch.Tensor) and part.shape == p.to_local().shape:
                    of[name] = DTensor.from_local(part, mesh, places, shape=p.shape, stride=p.stride())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return command_line.main(arguments, BuiltinFullySharded(), __doc__ or "")
