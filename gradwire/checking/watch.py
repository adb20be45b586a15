"""Watches a script's ranks: the hooks that turn what they do into records."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from typing_extensions import override

from gradwire.checking import calls, loops, steps
from gradwire.checking.loading import Loading, row_checksums
from gradwire.checking.losses import Losses
from gradwire.checking.rank import SeenRank, checksum, quiet
from gradwire.checking.seen import Own, Run
from gradwire.checking.sketch import sketch
from gradwire.torch_scripts.calls import Pending
from gradwire.torch_scripts.threads import Killed, RankThread, here
from gradwire.torch_scripts.watcher import Watcher
from gradwire.worker_optimizer import WorkerOptimizer


class Watch(Watcher):
    """Watches all ranks of a run of a script in `folder`; each ends after `steps` of its first optimizer."""

    def __init__(self, n: int, folder: str, steps: int | None = None) -> None:
        self.run, self.folder = Run(n), folder
        self.earlier: list[Run] = []  # a script may launch several
        self.ranks = [SeenRank(rank, n) for rank in range(n)]
        self._steps = steps
        self._loading = Loading(self.run, self.ranks)
        self._calls = calls.Calls(self.run, self.ranks, folder)
        self._bind()

    def _bind(self) -> None:
        self.run.models = [seen.models for seen in self.ranks]
        self.run.strays = [seen.strays for seen in self.ranks]
        self.run.orphans = [seen.orphans for seen in self.ranks]
        self.run.trained = [seen.trained for seen in self.ranks]
        self.run.ends = [{} for _ in self.ranks]

    def _begin_run(self) -> None:
        """Begin with new records, and keep those of what all ranks have done until now."""
        for seen in self.ranks:
            seen.end(self.run)
        self.earlier.append(replace(self.run))
        vars(self.run).update(vars(Run(self.run.n)))
        for seen in self.ranks:
            vars(seen).update(vars(SeenRank(seen.rank, self.run.n)))
        self._bind()

    @override
    def entered(self, pending: Pending) -> None:
        with quiet(pending.thread):
            self._calls.enter(pending)

    @override
    def waited(self, pending: Pending) -> None:
        self._calls.wait(pending)

    @override
    @contextmanager
    def watch_rank(self, rank: RankThread) -> Iterator[None]:
        seen = self.ranks[rank.rank]
        with calls.Touches(self.run, seen, rank):
            yield
        with quiet(rank):
            seen.end(self.run)

    @override
    @contextmanager
    def watch(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in (
                (DistributedDataParallel, "__init__", self._made(DistributedDataParallel.__init__)),
                (torch.autograd, "_engine_run_backward", self._backward(torch.autograd._engine_run_backward)),
                (WorkerOptimizer, "__init__", self._began(self._apart(WorkerOptimizer.__init__))),
                *((WorkerOptimizer, name, self._apart(getattr(WorkerOptimizer, name))) for name in ("serve", "finish")),
                *loops.Launches(self._begin_run).replacements(),
                *self._loading.replacements(),
                *Losses(self._here).replacements(),
            ):
                stack.enter_context(patch.object(owner, name, value))
            for handle in (
                register_module_parameter_registration_hook(self._registered),
                register_module_forward_pre_hook(self._begin),
                register_module_forward_hook(self._end, always_call=True),
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(handle.remove)
            yield

    def _here(self) -> tuple[RankThread, SeenRank] | None:
        rank = None if torch.compiler.is_compiling() else here()  # what is traced has no values
        return None if rank is None else (rank, self.ranks[rank.rank])

    # Gradients and modules

    def _registered(self, module: nn.Module, name: str, parameter: Any) -> None:
        if (found := self._here()) is not None and isinstance(parameter, nn.Parameter):
            self._hook(found[1], parameter)

    def _hook(self, seen: SeenRank, parameter: nn.Parameter) -> None:
        """Have the gradients noted that reach a parameter, before any hook of the script changes them."""
        if parameter in seen.hooked or not parameter.requires_grad or not parameter.is_leaf:
            return
        if isinstance(parameter, DTensor) or parameter.is_meta:
            return
        seen.hooked[parameter] = True
        reference = weakref.ref(parameter)

        def reach(gradient: torch.Tensor) -> None:
            rank, p = here(), reference()
            if rank is None or p is None or isinstance(gradient, DTensor):
                return
            with quiet(rank):
                seen = self.ranks[rank.rank]
                seen.reached[p] = True
                if not seen.is_kept:
                    return
                task = torch._C._current_graph_task_id()
                address = 0 if gradient.is_sparse else gradient.data_ptr()
                summed, before = seen.summed_on_the_way.get((task, address), (gradient, None))
                own = seen.own.get(p)
                now = sketch(gradient) if before is None or summed.shape != gradient.shape else before
                if own is None or own.sketch.shape != now.shape or p.grad is None or not bool(p.grad.any()):
                    own = seen.own[p] = Own(now * 0.0)
                own.sketch = own.sketch + now
                own.passes.append(task)
                if task not in seen.lines:
                    seen.lines[task] = rank.line()
                    if seen.epoch is not None:
                        seen.epoch.trains = True

        parameter.register_hook(reach)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        if (found := self._here()) is None:
            return
        rank, seen = found
        seen.modules.append(module)
        if len(seen.modules) == 1:
            learns = torch.is_grad_enabled()
            with quiet(rank):
                seen.add_root(module)
                for parameter in module.parameters():
                    self._hook(seen, parameter)
                if learns:
                    seen.note_forward(module)
                    seen.rows.update(row_checksums(inputs))

    def _end(self, *_: Any) -> None:
        if (found := self._here()) is not None and found[1].modules:
            found[1].modules.pop()

    def _made(self, real: Callable[..., None]) -> Callable[..., None]:
        def make(ddp: Any, module: nn.Module, *arguments: Any, **more: Any) -> None:
            if (found := self._here()) is not None:
                with quiet(found[0]):
                    found[1].note_wrapped(module, self.run, found[0].line())
            real(ddp, module, *arguments, **more)
            if found is not None:
                rank, seen = found
                with quiet(rank):
                    seen.add_root(ddp)
                    seen.add_ddp(ddp, self.run, rank.line())

        return make

    def _began(self, real: Callable[..., None]) -> Callable[..., None]:
        def begin(optimizer: WorkerOptimizer, *arguments: Any, **more: Any) -> None:
            real(optimizer, *arguments, **more)
            if (found := self._here()) is not None:
                found[1].add_of_loop(optimizer.replica.model)
                if optimizer.is_server:
                    self.run.servers.add(found[0].rank)

        return begin

    def _apart(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return what a strategy does, in which no step is the script's."""

        def do(optimizer: WorkerOptimizer, *arguments: Any, **more: Any) -> Any:
            if (found := self._here()) is None:
                return real(optimizer, *arguments, **more)
            found[1].stepping += 1
            try:
                return real(optimizer, *arguments, **more)
            finally:
                found[1].stepping -= 1

        return do

    def _backward(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, accumulate_grad: bool, **more: Any) -> Any:
            found = self._here()
            if found is not None:
                found[1].is_kept, before = accumulate_grad, found[1].is_kept
            try:
                return real(*arguments, accumulate_grad=accumulate_grad, **more)
            finally:
                if found is not None:
                    found[1].is_kept = before

        return run

    # Steps

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, more: Any) -> Any:
        if (found := self._here()) is None:
            return None
        rank, seen = found
        seen.stepping += 1
        if seen.stepping > 1 or loops.is_of_strategy():  # one optimizer inside another
            return None
        given = [*arguments[1:], *more.values()]
        with quiet(rank):
            seen.optimizers.setdefault(optimizer, len(seen.optimizers))
            before = steps.sketches(optimizer)
        closure = next((value for value in given if callable(value)), None)

        def note() -> None:
            with quiet(rank):
                if seen.step is not None:
                    seen.step.repeats = True
                    return
                self.run.draws[rank.rank].append((id(seen.epoch), checksum(torch.default_generator.get_state())))
                seen.step = steps.record(rank, seen, optimizer, given, before)

        def compute(*of_closure: Any) -> Any:
            loss = closure(*of_closure)  # type: ignore[misc]
            note()
            return loss

        if closure is None:
            return note()
        changed = {name: compute if value is closure else value for name, value in more.items()}
        return tuple(compute if value is closure else value for value in arguments), changed

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (found := self._here()) is None:
            return
        rank, seen = found
        seen.stepping -= 1
        if seen.stepping or seen.step is None:
            return
        with quiet(rank):
            for name, p in seen.stepped_now:
                of_step = seen.step.parameters[name]
                of_step.after, of_step.last = sketch(p), steps.first_of(p)
                of_step.sent_at = of_step.sent_at or seen.sent_at(p, seen.own.get(p))
            self.run.steps.append(seen.step)
            seen.stepped(seen.optimizers[optimizer])
            if isinstance(optimizer, WorkerOptimizer):  # whose strategy may have let its parameters lie elsewhere
                seen.addresses = {p.data_ptr(): name for name, p in seen.parameters().items()}
        if self._steps is not None and seen.taken[0] >= self._steps:
            self.run.is_whole = False
            raise Killed
