"""The backend "gradwire" of torch.distributed: torch finds it by the entry point, or when `gradwire` is imported."""

import sys
from datetime import timedelta
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

NAME = "gradwire"
_MODULE = "torch.distributed.distributed_c10d"  # which has `Backend`


def register() -> None:
    """Let `init_process_group("gradwire")` and `new_group(backend="gradwire")` make groups; loads only torch."""
    import torch.distributed as dist

    if dist.is_available():
        _register_in(sys.modules[_MODULE])


def register_when_torch_is_loaded() -> None:
    """Call `register` now if torch.distributed is loaded, otherwise when it is: this loads nothing of torch."""
    if _MODULE in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _WhenLoaded())


class _WhenLoaded(MetaPathFinder):
    """Registers the backend in the module that has torch's backends, when that is imported; finds nothing else."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        if (spec := find_spec(fullname)) and (loader := spec.loader):
            load = loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register_in(module)

            loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


def _register_in(module: ModuleType) -> None:
    if NAME not in module.Backend.backend_list:
        module.Backend.register_backend(NAME, make_group, devices=["cpu"])


def make_group(store: "dist.Store", rank: int, size: int, timeout: timedelta) -> "dist.ProcessGroup":
    """Return this rank's part of a new group, when all its members call this. Raises RunFailed, UsageError."""
    from gradwire.backend.real_group import RealGroup

    return RealGroup(store, rank, size, timeout)
