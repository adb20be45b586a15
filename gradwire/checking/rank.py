"""What is known of one rank while it runs."""

import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from gradwire.checking.seen import Criterion, Epoch, ModelParameter, Own, Run, Step
from gradwire.checking.sketch import Sketch, equal, sketch
from gradwire.torch_scripts.threads import RankThread


def checksum(tensor: torch.Tensor) -> int:
    """Return one of its bytes."""
    return zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


class SeenRank:
    """What is known of a rank."""

    def __init__(self, rank: int, n: int) -> None:
        self.rank = rank
        self.clock = [0] * n
        self.own: Any = WeakIdKeyDictionary()  # Own, by parameter
        self.hooked: Any = WeakIdKeyDictionary()
        self.reached: Any = WeakIdKeyDictionary()  # parameters that a gradient has come to
        self.is_kept = True  # the backward pass adds to the gradients
        self.optimizers: Any = weakref.WeakKeyDictionary()
        self.loaders: Any = weakref.WeakKeyDictionary()
        self.epochs: Any = weakref.WeakKeyDictionary()  # by iterator
        self.epoch: Epoch | None = None  # whose batch was taken last
        self.modules: list[nn.Module] = []  # that are being called
        self.lines: dict[int, str] = {}
        self.criteria: dict[int, list[Criterion]] = {}
        self.how: set[str] = set()
        self.rows: set[int] = set()
        self.written: dict[str, str] = {}
        self.under_way: dict[int, Any] = {}  # calls of the script, with their buffers and lines
        self.sent: list[tuple[int, Sketch, str]] = []  # all-reduced by the script: whose gradient, sketch, line
        # By backward pass and address, what the script has all-reduced in it, and a sketch of that before.
        self.summed_on_the_way: dict[tuple[int, int], tuple[torch.Tensor, Sketch]] = {}
        self.addresses: dict[int, str] = {}  # of parameters
        self.models: dict[str, ModelParameter] = {}
        self.orphans: dict[str, str] = {}
        self.stepped_ever: Any = WeakIdKeyDictionary()  # parameters
        self.strays: list[tuple[int, ...]] = []  # shapes of parameters with gradients, of no model and no optimizer
        self.trained: set[str] = set()
        self.stepping = 0  # optimizers, one inside another
        self.step: Step | None = None
        self.stepped_now: list[tuple[str, torch.Tensor]] = []  # parameters, by name
        self.taken: dict[int, int] = {}  # steps, by optimizer
        self.collectives = 0  # of all ranks
        self._since: dict[int, tuple[int, int]] = {}  # by optimizer: steps since so many collectives
        self._labels: dict[int, str] = {}  # by optimizer: its model, and which of the optimizers of that it is
        self._roots: list[tuple[str, Any]] = []
        self._of_loops: list[tuple[str, Any]] = []  # models of WorkerOptimizers
        self._last: dict[
            str, nn.Parameter
        ] = {}  # at the last step; a model that a function made may end before the script
        self.wrapped = 0  # how often DDP was made of parameters that had been stepped
        self._ddp: Any = WeakIdKeyDictionary()  # modules inside of one

    def tick(self) -> None:
        """Count an event."""
        self.clock[self.rank] += 1

    def join(self, clock: tuple[int, ...]) -> None:
        """Note that what came before that clock came before now."""
        self.clock = [max(pair) for pair in zip(self.clock, clock, strict=True)]

    def key(self, index: int, name: str) -> tuple[str, int, int]:
        """Return what this step shares with those of other ranks that belong to it; `name`: of a parameter it steps."""
        if index not in self._labels:
            root = name.rpartition(":")[0]
            number = sum(label.startswith(f"{root}, ") for label in self._labels.values())
            self._labels[index] = f"{root}, {number}"
        before, count = self._since.get(index, (-1, 0))
        count = count + 1 if before == self.collectives else 0
        self._since[index] = self.collectives, count
        return self._labels[index], self.collectives, count

    def stepped(self, index: int) -> None:
        """Forget what the step has taken."""
        self.taken[index] = self.taken.get(index, 0) + 1
        self.step = None
        self.how.clear()
        self.rows.clear()
        self.written.clear()
        self.sent.clear()
        self.summed_on_the_way.clear()

    # Models

    def add_root(self, module: nn.Module) -> None:
        """Note a model that is called from outside of any."""
        module = _inner(module)
        if not any(reference() is module for _, reference in self._roots):
            kind = type(module).__name__
            number = sum(name.startswith(f"{kind} ") for name, _ in self._roots)
            self._roots.append((f"{kind} {number}", weakref.ref(module)))

    def note_wrapped(self, module: nn.Module, run: Run, at: str) -> None:
        """Note parameters of which DDP is made though they have been stepped."""
        names, found = self.names(), [p for p in module.parameters() if p in self.stepped_ever]
        if found:
            run.wrapped += [{} for _ in range(len(run.wrapped), self.wrapped + 1)]
            run.wrapped[self.wrapped][self.rank] = {names.get(id(p), ""): sketch(p) for p in found}, at
            self.wrapped += 1

    def add_ddp(self, ddp: DistributedDataParallel, run: Run, at: str) -> None:
        """Note that all ranks have the same parameters in this module now."""
        if ddp.module not in self._ddp:  # all ranks make it, though some may have called other models before
            number, self._ddp[ddp.module] = len(self._ddp), True
            former = tuple(f"{root}:" for root, reference in self._roots if reference() is ddp.module)
            for name in [name for name in self.models if name.startswith(former)]:
                del self.models[name]
            self._roots = [
                (f"DDP {number}" if reference() is ddp.module else root, reference) for root, reference in self._roots
            ]
        members = tuple(dist.get_process_group_ranks(ddp.process_group))
        if len(members) < run.n:
            run.teams[self.rank] = members
        names = self.names()
        parameters = {names[id(p)]: p for p in ddp.module.parameters()}
        self.addresses = {p.data_ptr(): name for name, p in parameters.items()}
        run.ddp |= set(parameters)
        if ddp.find_unused_parameters:
            run.may_be_unused |= set(parameters)
        run.made.setdefault(self.rank, {}).update({name: (sketch(p), at) for name, p in parameters.items()})

    def add_of_loop(self, module: nn.Module) -> None:
        """Note the model of a WorkerOptimizer, of which a part may be called."""
        self._of_loops.append((f"WorkerOptimizer {len(self._of_loops)}", weakref.ref(module)))

    def note_forward(self, module: nn.Module) -> None:
        """Note how a model is called."""
        if isinstance(module, DistributedDataParallel):
            self.how.add("ddp" if module.require_backward_grad_sync else "no_sync")
        elif module in self._ddp:
            self.how.add("inner")
        if not module.training:
            self.how.add("eval")

    def names(self) -> dict[int, str]:
        """Return the names of the parameters of all models, by id."""
        found: dict[int, str] = {}
        for name, p in self.parameters().items():
            found.setdefault(id(p), name)
        return found

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of all models."""
        found = _parameters(self._of_loops)
        known = {id(p) for p in found.values()}
        return found | {name: p for name, p in _parameters(self._roots).items() if id(p) not in known}

    def buffers(self) -> dict[str, Sketch]:
        """Return sketches of the float buffers of all models."""
        alive = [(root, module) for root, reference in self._roots if (module := reference()) is not None]
        return {
            f"{root}:{name}": sketch(buffer)
            for root, module in alive
            for name, buffer in module.named_buffers()
            if buffer.is_floating_point()
        }

    def note_models(self, stepped: list[torch.Tensor], at: str, of_strategy: bool) -> None:
        """Note which parameters of the models are stepped, and which that are stepped belong to none.

        `of_strategy`: by one, which gives all of them a gradient.
        """
        ids, found = {id(p) for p in stepped}, self.parameters()
        self._last = found
        for name, p in found.items():
            before = self.models.get(name, ModelParameter(False, False, False))
            has = before.has_gradient or p in self.reached or p not in self.hooked or not p.requires_grad
            if p.requires_grad and (p in self.reached or (isinstance(p, DTensor) and p.grad is not None)):
                self.trained.add(name)
            is_given = before.is_given or (p.grad is not None and not of_strategy)
            self.models[name] = ModelParameter(has, before.is_stepped or id(p) in ids, is_given)
        self.addresses = {p.data_ptr(): name for name, p in found.items()}
        of_models = {id(p) for p in _parameters(self._roots).values()}
        for tensor in stepped:
            self.stepped_ever[tensor] = True
        strays = (p for p in self.reached if p.requires_grad and id(p) not in of_models and p not in self.stepped_ever)
        self.strays[:] = [tuple(p.shape) for p in strays]
        for i, tensor in enumerate(stepped):
            if id(tensor) not in of_models and tensor not in self.reached and tensor.grad is None:
                self.orphans[f"parameter {i}"] = at

    def sent_at(self, p: torch.Tensor, own: Own | None) -> str:
        """Return the line where the gradient of a parameter was all-reduced by the script; "": it was not."""
        for owner, found, at in self.sent:
            if owner in (id(p), -1) or (
                own is not None and found.shape == own.sketch.shape and equal(found, own.sketch)
            ):
                return at
        return ""

    def owner_of(self, gradient: torch.Tensor) -> int:
        """Return the id of the parameter whose gradient lies here; -1: all of them do, one after another; 0: none."""
        found = [p for p in self.hooked if p.grad is not None and type(p.grad) is torch.Tensor]
        if gradient.numel() == sum(p.numel() for p in found) and len(found) > 1:
            return -1 if torch.equal(gradient.flatten(), torch.cat([p.grad.flatten() for p in found])) else 0
        alike = (p for p in found if p.numel() == gradient.numel() and p.grad.data_ptr() == gradient.data_ptr())
        return next((id(p) for p in alike), 0)

    def end(self, run: Run) -> None:
        """Note the parameters at the end of the script."""
        run.unwaited += [(self.rank, pending.call.kind, at) for pending, _, at in self.under_way.values()]
        ends = self._last | self.parameters()
        run.ends[self.rank] = {name: sketch(p) for name, p in ends.items() if type(p.data) is torch.Tensor}


def _parameters(roots: list[tuple[str, Any]]) -> dict[str, nn.Parameter]:
    alive = [(root, module) for root, reference in roots if (module := reference()) is not None]
    return {f"{root}:{name}": p for root, module in alive for name, p in module.named_parameters()}


def _inner(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


@contextmanager
def quiet(rank: RankThread) -> Iterator[None]:
    """In the block, nothing takes time of the rank, and no mode of the script sees an operation."""
    with rank.unbilled(), torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunction():
        yield
