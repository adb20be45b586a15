"""What --on_cpu replaces in torch: to a script, cuda and nccl mean the CPU and gloo."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from typing_extensions import override

_NOTHING = ("set_device", "synchronize", "empty_cache", "manual_seed_all", "reset_peak_memory_stats")  # they do
NOTE = "--on_cpu: cuda and nccl mean the CPU and gloo to the script"


class CudaIsCpu(TorchFunctionMode):
    """In its block, torch functions with a GPU as argument use the CPU, in the thread that enters it."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        kwargs = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        args = [*map(_on_cpu, args)]
        if func is torch.Tensor.to and type(args[-1]) is int:  # the number of a GPU
            args[-1] = "cpu"
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class _Stream(torch.cpu.Stream):
    """A stream whose work is done at once."""

    def synchronize(self) -> None:
        """See torch.cuda."""


@contextmanager
def cuda_is_cpu() -> Iterator[None]:
    """In the block, torch says that each rank has a GPU, which is the CPU; see also CudaIsCpu."""
    from torch.distributed.fsdp import FullyShardedDataParallel  # which takes long to import

    cuda, amp, accelerator = torch.cuda, torch.amp, torch.accelerator
    found: list[tuple[Any, str, Any]] = [
        *((owner, "is_available", lambda: True) for owner in (cuda, accelerator)),
        *((owner, "device_count", _number_from("LOCAL_WORLD_SIZE")) for owner in (cuda, accelerator)),
        (cuda, "current_device", _number_from("LOCAL_RANK")),
        (accelerator, "current_device_index", _number_from("LOCAL_RANK")),
        (accelerator, "current_accelerator", _current_accelerator),
        (cuda, "get_device_name", lambda *_: "CPU"),
        (cuda, "is_bf16_supported", lambda *_: True),
        *((cuda, name, lambda *_: None) for name in _NOTHING),
        *((accelerator, name, lambda *_: None) for name in ("set_device_index", "synchronize")),
        *((cuda, name, lambda *_: 0) for name in ("memory_allocated", "max_memory_allocated", "memory_reserved")),
        (cuda, "Stream", _Stream),
        (cuda, "stream", lambda *_: nullcontext()),
        (cuda, "current_stream", lambda *_: _Stream()),
        (torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
        *((owner, "init_process_group", _with_gloo(dist.init_process_group)) for owner in (dist, c10d)),
        *((owner, "new_group", _with_gloo(dist.new_group)) for owner in (dist, c10d)),
        (dist.DeviceMesh, "__init__", _second_on_cpu(dist.DeviceMesh.__init__)),
        (torch.autocast, "__init__", _second_on_cpu(torch.autocast.__init__)),
        (amp.GradScaler, "__init__", _second_on_cpu(amp.GradScaler.__init__)),
        (DistributedDataParallel, "__init__", _without_devices(DistributedDataParallel.__init__)),
        (FullyShardedDataParallel, "__init__", _as_device_id(FullyShardedDataParallel.__init__)),
    ]
    with ExitStack() as stack:
        for owner, name, value in found:
            stack.enter_context(patch.object(owner, name, value))
        yield


def _on_cpu(value: Any) -> Any:
    """Return the CPU in place of a GPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) else value


def _number_from(variable: str) -> Callable[[], int]:
    return lambda: int(os.environ[variable])


def _current_accelerator(check_available: bool = False) -> torch.device | None:
    """See torch.accelerator, whose streams and groups torch would use if it were available."""
    return None if check_available else torch.device("cpu")


def _with_gloo(real: Callable[..., Any]) -> Callable[..., Any]:
    def make(*arguments: Any, **more: Any) -> Any:
        more.pop("device_id", None)
        given = ["gloo" if isinstance(argument, str) and "nccl" in argument else argument for argument in arguments]
        if "nccl" in (more.get("backend") or ""):
            more["backend"] = "gloo"
        return real(*given, **more)

    return make


def _second_on_cpu(real: Callable[..., None]) -> Callable[..., None]:
    def make(self: Any, *arguments: Any, **more: Any) -> None:
        real(self, *map(_on_cpu, arguments), **{name: _on_cpu(value) for name, value in more.items()})

    return make


def _without_devices(real: Callable[..., None]) -> Callable[..., None]:
    def make(self: Any, module: torch.nn.Module, *_: Any, **more: Any) -> None:
        real(self, module, **{name: item for name, item in more.items() if name not in ("device_ids", "output_device")})

    return make


def _as_device_id(real: Callable[..., None]) -> Callable[..., None]:
    def make(self: Any, *arguments: Any, **more: Any) -> None:
        real(self, *arguments, **{**more, "device_id": torch.device("cpu")})

    return make
