"""What is replaced in torch while a script runs, so that the script itself stays as it is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlparse

import torch
import torch.autograd
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.multiprocessing
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradwire.backend.registration import NAME, register
from gradwire.core.records.errors import RunFailed
from gradwire.torch_scripts import process, shared
from gradwire.torch_scripts.process_group import ScriptGroup
from gradwire.torch_scripts.threads import BackwardCall, RankThread, here

_GIVEN = ("world_size", "rank")  # of init_process_group


@contextmanager
def replaced(world_size: int) -> Iterator[None]:
    """In the block, let threads be ranks: groups of gloo and gradwire are ScriptGroups, and all ranks have one store.

    Also replaced are the starts of processes that are ranks, and what these share, and the wait for a future, during
    which other ranks run. Ranks are told of their passes, and of their optimizers' steps.
    """
    register()
    store = dist.HashStore()
    run_backward, wait_for = torch.autograd._engine_run_backward, torch._C.Future.wait
    make_really = torch.optim.Optimizer.__init__

    def check(call: str, given: int, own: int) -> None:
        if given != own:
            raise RunFailed(f"{call}={given}): this is rank {_rank().rank} of --n_gpus {world_size}; give {own}")

    def meet(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
        rank, size = _rank(), world_size
        given = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items() if name in _GIVEN}
        if given.get("world_size") in rank.engine.started.sizes:
            size = given["world_size"]
        for name, own in (("world_size", size), ("rank", rank.rank)):
            check(f"init_process_group({name}", given.get(name, own), own)
        yield store, rank.rank, size

    def backward(
        outputs: Any, gradients: Any, retains: Any, has_graph: Any, inputs: Any, *arguments: Any, **more: Any
    ) -> Any:
        def run() -> Any:
            return run_backward(outputs, gradients, retains, has_graph, inputs, *arguments, **more)

        rank, is_inner = here(), torch._C._current_graph_task_id() != -1
        return run() if rank is None or is_inner else rank.backward(run, BackwardCall(outputs, inputs, bool(has_graph)))

    def begin(module: torch.nn.Module, inputs: Any) -> None:
        if (rank := here()) is not None:
            rank.begin(module, inputs)

    def end(*_: Any) -> None:
        if (rank := here()) is not None:
            rank.end()

    def wait(future: Any) -> Any:
        if (rank := here()) is not None and not future.done():
            rank.settle()
        return wait_for(future)

    def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, **_: Any) -> Any:
        rank = _rank()
        if not 0 < nprocs <= world_size <= rank.starter.processes:  # not all have been ranks: the others would be idle
            check("spawn(nprocs", nprocs, world_size)
        rank.engine.started.sizes.add(nprocs)
        return shared.spawn(fn, args, nprocs, join)

    def make(optimizer: Any, *arguments: Any, **more: Any) -> None:
        make_really(optimizer, *arguments, **more)
        if (rank := here()) is not None:
            rank.has_optimizer = True

    def steps_now(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (rank := here()) is not None:
            rank.steps_now(optimizer)

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if (rank := here()) is not None:
            rank.stepped(optimizer)

    with ExitStack() as stack:
        for owner, name, value in (
            (c10d, "ProcessGroupGloo", ScriptGroup),  # before torch 2.13
            (torch.autograd, "_engine_run_backward", backward),
            (torch._C.Future, "wait", wait),
            (torch.multiprocessing, "spawn", spawn),
            (torch.optim.Optimizer, "__init__", make),
            *process.replacements(),
            *shared.replacements(),
        ):
            stack.enter_context(patch.object(owner, name, value))
        plugin = c10d.Backend._BackendPlugin(ScriptGroup, False)
        stack.enter_context(patch.dict(c10d.Backend._plugins, {"GLOO": plugin, NAME.upper(): plugin}))
        stack.enter_context(patch.dict(_rendezvous_handlers, dict.fromkeys(("env", "tcp", "file"), meet)))
        stack.callback(register_module_forward_pre_hook(begin).remove)
        stack.callback(register_module_forward_hook(end, always_call=True).remove)
        stack.callback(register_optimizer_step_pre_hook(steps_now).remove)
        stack.callback(register_optimizer_step_post_hook(stepped).remove)
        by_thread: Any = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode")  # noqa: B009 - no stub has it
        by_thread(True)  # C++ knows groups by name, and here by name and thread
        stack.callback(by_thread, False)
        yield


def _rank() -> RankThread:
    rank = here()
    assert rank is not None, "only ranks run the script"
    return rank
